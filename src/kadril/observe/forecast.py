"""`kadril forecast`: the time of an all-reduce on more hosts than there are here, by a model.

    kadril forecast --hosts 64 --ranks 8 --bytes 100M --bandwidth 10Gbit --latency 50us

The model is `kadril.transport.tiers.cost_model`; docs/forecast.md tells how far it can be trusted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kadril.bench.options import format_size, parse_size
from kadril.errors import ConfigError
from kadril.observe.forecast_schedules import Network, schedules_for
from kadril.observe.quantities import (
    format_bandwidth,
    format_duration,
    parse_bandwidth,
    parse_duration,
)
from kadril.transport.tiers.cost_model import TierSpeed, least_seconds

__all__ = ["Network", "describe_forecast", "main", "schedules_for"]

MOST_RANKS = 1 << 17  # a plan of more takes long


def describe_forecast(network: Network, num_hosts: int, computing: float | None = None) -> str:
    """Return the forecast as a table.

    Args:
        network: what it is for.
        num_hosts: how many.
        computing: seconds of a training step without communication, for the column of the scaling
            efficiency; that communication hides behind none of it.
    """
    tiers = network.tiers
    least = least_seconds(num_hosts, network.num_bytes, tiers)
    lines = [
        f"all-reduce of {format_size(network.num_bytes)} on {num_hosts} hosts with"
        f" {network.num_local} ranks each: {num_hosts * network.num_local} workers",
        *(
            f"{where:<14} {describe_speed(speed)}"
            for where, speed in zip(WHERE, tiers, strict=True)
        ),
        "",
        heading(computing),
    ]
    for schedule in schedules_for(network, num_hosts):
        seconds = schedule.seconds(tiers)
        num_steps = sum(phase.num_steps for phase in schedule.phases)
        line = (
            f"{schedule.name:<18} {format_duration(seconds):>9} {least / seconds:>9.2f}"
            f" {schedule.uplink_bytes() / network.num_bytes:>9.2f} {num_steps:>7}"
        )
        if computing is not None:
            line += f" {computing / (computing + seconds):>10.1%}"
        lines.append(line)
    lines.append(f"{'least possible':<18} {format_duration(least):>9}")
    return "\n".join(lines)


WHERE = ("inside a host", "between hosts")


def heading(computing: float | None) -> str:
    """The line above the columns."""
    line = f"{'all-reduce':<18} {'time':>9} {'of least':>9} {'uplink':>9} {'steps':>7}"
    return line if computing is None else f"{line} {'efficiency':>10}"


def describe_speed(speed: TierSpeed) -> str:
    """A tier in words."""
    return (
        f"{format_bandwidth(speed.bandwidth)}, {format_duration(speed.latency)} a step,"
        f" {format_duration(speed.overhead)} of a processor for each message"
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of everything after `kadril forecast`."""
    parser = argparse.ArgumentParser(
        prog="kadril forecast",
        description="Forecast the time of a large all-reduce: tiers, rings, trees, 2D-torus.",
        epilog="Times come from a model: see docs/forecast.md. `uplink`: bytes through the link of"
        " a host and direction, as a multiple of --bytes. `steps`: that wait for each other.",
    )
    add = parser.add_argument
    add("--hosts", type=int, required=True, metavar="N", help="number of hosts")
    add("--ranks", type=int, default=1, metavar="N", help="ranks on each host (default: 1)")
    add("--bytes", default="100M", metavar="SIZE", help="of the array (default: 100M)")
    add("--bandwidth", default="10Gbit", metavar="RATE", help="between hosts (default: 10Gbit)")
    add("--latency", default="50us", metavar="TIME", help="between hosts (default: 50us)")
    add("--overhead", default="2us", metavar="TIME", help="of a message (default: 2us)")
    add("--local-bandwidth", default="5GB", metavar="RATE", help="of a rank (default: 5GB)")
    add("--local-latency", default="5us", metavar="TIME", help="inside a host (default: 5us)")
    add("--chunk", metavar="SIZE", help="of an array under way (default: as the transport)")
    add("--wire-dtype", choices=("bf16", "fp16"), help="tiers send float32 as such")
    add("--step", metavar="TIME", help="training step without communication, for efficiencies")
    add("--plot", type=Path, metavar="FILE", help="draw times over numbers of hosts")
    return parser


def main(argv: list[str]) -> int:
    """Run `kadril forecast` with these words and return its exit code."""
    words = make_parser().parse_args(argv)
    try:
        network = read_network(words)
        computing = None if words.step is None else parse_duration(words.step)
        print(describe_forecast(network, words.hosts, computing))
        if words.plot is not None:
            from kadril.observe.forecast_plot import draw_forecast

            draw_forecast(network, words.hosts, words.plot)
            print(f"\ndrawn to {words.plot}")
    except ConfigError as error:
        print(f"kadril forecast: {error}", file=sys.stderr)
        return 2
    return 0


def read_network(words: argparse.Namespace) -> Network:
    """Return what the command line says.

    Raises:
        ConfigError: it makes no sense.
    """
    if words.hosts < 2 or words.ranks < 1:
        raise ConfigError(
            f"a forecast is for 2 hosts or more, with ranks on each; got --hosts {words.hosts}"
            f" --ranks {words.ranks}. On one host, measure: kadril bench"
        )
    if words.hosts * words.ranks > MOST_RANKS:
        raise ConfigError(
            f"--hosts {words.hosts} --ranks {words.ranks} are {words.hosts * words.ranks} workers;"
            f" at most {MOST_RANKS} are planned"
        )
    num_bytes = parse_size(words.bytes)
    chunk_bytes = None if words.chunk is None else parse_size(words.chunk)
    if not num_bytes or chunk_bytes == 0:
        raise ConfigError(f"--bytes {words.bytes} and --chunk {words.chunk} must not be 0")
    overhead = parse_duration(words.overhead)
    return Network(
        words.ranks,
        num_bytes,
        TierSpeed(parse_bandwidth(words.local_bandwidth), parse_duration(words.local_latency)),
        TierSpeed(parse_bandwidth(words.bandwidth), parse_duration(words.latency), overhead),
        chunk_bytes,
        0.5 if words.wire_dtype else 1.0,
    )
