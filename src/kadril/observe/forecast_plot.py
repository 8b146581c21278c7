"""A picture of a forecast: time of an all-reduce over the number of hosts."""

from __future__ import annotations

from pathlib import Path

from kadril.bench.options import format_size
from kadril.bench.plot import check_matplotlib
from kadril.observe.forecast_schedules import Network, schedules_for
from kadril.observe.quantities import format_bandwidth
from kadril.transport.tiers.cost_model import least_seconds

__all__ = ["draw_forecast", "host_counts"]

INCHES = (7.2, 4.4)


def host_counts(num_hosts: int) -> list[int]:
    """Powers of two up to a number of hosts, and that number."""
    powers = [1 << power for power in range(1, num_hosts.bit_length())]
    return sorted({*powers, num_hosts})


def draw_forecast(network: Network, num_hosts: int, path: Path) -> None:
    """Draw times on 2 to `num_hosts` hosts.

    Args:
        network: what the forecast is for.
        num_hosts: largest number of hosts that is drawn.
        path: of the file; its suffix says what kind.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    counts = host_counts(num_hosts)
    lines: dict[str, list[float]] = {}
    for count in counts:
        for schedule in schedules_for(network, count):
            name = schedule.name.partition(" ")[0] if "torus" in schedule.name else schedule.name
            lines.setdefault(name, []).append(schedule.seconds(network.tiers))
    figure = Figure(figsize=INCHES, layout="constrained")
    panel = figure.subplots()
    workers = [count * network.num_local for count in counts]
    for name, times in lines.items():
        panel.plot(workers, [1e3 * time for time in times], marker="o", markersize=3, label=name)
    least = [1e3 * least_seconds(count, network.num_bytes, network.tiers) for count in counts]
    panel.plot(workers, least, color="black", linestyle="--", linewidth=1, label="least possible")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(workers, [str(count) for count in workers])
    panel.minorticks_off()
    panel.set_xlabel(f"workers, {network.num_local} on each host")
    panel.set_ylabel("milliseconds")
    panel.set_title(
        f"All-reduce of {format_size(network.num_bytes)} by the model,"
        f" {format_bandwidth(network.between.bandwidth)} between hosts",
        fontsize=10,
    )
    panel.grid(visible=True, alpha=0.3)
    panel.legend(fontsize=8)
    figure.savefig(path)
