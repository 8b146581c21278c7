"""The flags of horovodrun, and what each one means to `kadril run`.

    sets an option      becomes KADRIL_<OPTION> for the ranks
    is acted upon       by the launcher itself, see `elastic_options`
    has no effect       accepted, and said so with the reason
    is refused          what it asks for cannot be had; the message says what to do instead

No flag is ignored in silence. Those that the launcher itself acts upon (`-np`, `--output-filename`,
`--hosts`, ...) are in `command` and `host_options`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kadril import horovod_variables
from kadril.config import Config, variable
from kadril.errors import ConfigError

__all__ = ["FLAGS", "Applied", "Flag", "apply", "flag_named"]


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag, or a pair of them that switches something on and off.

    Attributes:
        name: the flag, with its dashes.
        kind: int, float, str, or bool for one without a value.
        key: its place in a configuration file, "section.name"; nothing where it has none.
        inverted_key: a place in a configuration file that says the opposite.
        option: the option of `Config` that it sets.
        translate: its value as the text of that option.
        note: what to say when it is used, of a flag that sets an option.
        own: what the launcher itself does with it.
        idle: why it has no effect.
        refused: why it is refused, and what to do instead.
        others: further names.
        off: names that switch it off; they are said to have no effect only where they would have.
        num_values: how many words follow it.
    """

    name: str
    kind: type[Any] = str
    key: str = ""
    option: str = ""
    translate: Callable[[Any], str] = str
    note: str = ""
    own: str = ""
    idle: str = ""
    refused: str = ""
    others: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    inverted_key: str = ""
    num_values: int = 1

    @property
    def dest(self) -> str:
        """Return where its value is after parsing."""
        return self.name.lstrip("-").replace("-", "_")


def switch(name: str, **fields: Any) -> Flag:
    """Return a flag `--name` with its opposite `--no-name`."""
    return Flag(f"--{name}", kind=bool, off=(f"--no-{name}",), **fields)


def megabytes(value: int) -> str:
    """Bytes of so many MiB."""
    return str(value * 1024 * 1024)


def as_switch(value: bool) -> str:
    """Return a bool as the text of an option."""
    return "1" if value else "0"


IDLE = horovod_variables.IDLE
NO_LEVELS = IDLE["HOROVOD_HIERARCHICAL_ALLREDUCE"]
NO_TUNER = IDLE["HOROVOD_AUTOTUNE"]
NO_INFINIBAND = "kadril's own transports use TCP between hosts"
NO_MPIRUN = "`kadril run` starts the ranks itself, without mpirun"
USE_MPIRUN = (
    "MPI knows only ranks that its own launcher has started. Use that, kadril finds it:"
    " mpirun -np N python train.py (and -x KADRIL_TRANSPORT=mpi to carry all data by MPI)"
)

FLAGS = (
    # tunable parameters
    Flag("--fusion-threshold-mb", int, "params.fusion_threshold_mb", "fusion_threshold", megabytes),
    Flag("--cycle-time-ms", float, "params.cycle_time_ms", idle=IDLE["HOROVOD_CYCLE_TIME"]),
    Flag("--cache-capacity", int, "params.cache_capacity", "cache_capacity"),
    switch("hierarchical-allreduce", key="params.hierarchical_allreduce", idle=NO_LEVELS),
    switch("hierarchical-allgather", key="params.hierarchical_allgather", idle=NO_LEVELS),
    switch("torus-allreduce", key="params.torus_allreduce", idle=NO_LEVELS),
    # autotune
    switch("autotune", key="autotune.enabled", idle=NO_TUNER),
    Flag("--autotune-log-file", str, "autotune.log_file", idle=NO_TUNER),
    Flag("--autotune-warmup-samples", int, "autotune.warmup_samples", idle=NO_TUNER),
    Flag("--autotune-steps-per-sample", int, "autotune.steps_per_sample", idle=NO_TUNER),
    Flag("--autotune-bayes-opt-max-samples", int, "autotune.bayes_opt_max_samples", idle=NO_TUNER),
    Flag(
        "--autotune-gaussian-process-noise", float, "autotune.gaussian_process_noise", idle=NO_TUNER
    ),
    # timeline
    Flag("--timeline-filename", str, "timeline.filename", "timeline"),
    switch(
        "timeline-mark-cycles",
        key="timeline.mark_cycles",
        option="timeline_mark_cycles",
        translate=as_switch,
    ),
    # stall check
    switch("stall-check", key="stall_check.enabled", option="stall_check", translate=as_switch),
    Flag(
        "--stall-check-warning-time-seconds",
        float,
        "stall_check.warning_time_seconds",
        "stall_warning",
    ),
    Flag(
        "--stall-check-shutdown-time-seconds",
        float,
        "stall_check.shutdown_time_seconds",
        "patience",
        lambda seconds: str(seconds or horovod_variables.NEVER),
    ),
    # libraries
    switch(
        "mpi-threads-disable",
        key="library_options.mpi_threads_disable",
        idle=IDLE["HOROVOD_MPI_THREADS_DISABLE"],
    ),
    Flag("--mpi-args", idle=NO_MPIRUN),
    Flag("--tcp", bool, idle=f"{NO_INFINIBAND}; for nccl give -x NCCL_IB_DISABLE=1"),
    Flag("--binding-args", idle=f"{NO_MPIRUN}; --bind binds each rank to a core"),
    Flag(
        "--num-nccl-streams",
        int,
        "library_options.num_nccl_streams",
        idle=IDLE["HOROVOD_NUM_NCCL_STREAMS"],
    ),
    Flag(
        "--thread-affinity",
        int,
        "library_options.thread_affinity",
        idle="--bind binds each rank, with all its threads, to a core",
    ),
    Flag(
        "--ccl-bgt-affinity",
        int,
        "library_options.ccl_bgt_affinity",
        idle=IDLE["HOROVOD_CCL_BGT_AFFINITY"],
    ),
    Flag(
        "--gloo-timeout-seconds", float, "library_options.gloo_timeout_seconds", "connect_timeout"
    ),
    # logging
    Flag(
        "--log-level",
        str,
        "logging.level",
        "log_level",
        horovod_variables.python_log_level,
    ),
    Flag(
        "--log-without-timestamp",
        bool,
        "logging.hide_timestamp",
        inverted_key="logging.with_timestamp",
        idle=IDLE["HOROVOD_LOG_HIDE_TIME"],
        others=("--log-hide-timestamp",),
        off=("--log-with-timestamp", "--no-log-hide-timestamp"),
    ),
    # start
    Flag("--start-timeout", float, option="connect_timeout"),
    Flag("--disable-cache", bool, idle="hosts are checked at every start, and nothing is kept"),
    # transport
    Flag(
        "--gloo",
        bool,
        option="transport",
        translate=lambda _: "c10d:gloo",
        note="--gloo: the transport is c10d:gloo. Without this flag, ranks of one host share"
        " memory, which needs no MPI either and is faster",
    ),
    Flag("--mpi", bool, refused=USE_MPIRUN),
    Flag("--jsrun", bool, refused=USE_MPIRUN),
    # elastic
    Flag(
        "--min-np",
        int,
        own="go on with the ranks that are left when some fail, if these are not fewer",
        others=("--min-num-proc",),
    ),
    Flag(
        "--max-np",
        int,
        own="never have more ranks than these, replaced and added ones included",
        others=("--max-num-proc",),
    ),
    Flag("--slots-per-host", int, own="slots of a host that the discovery script lists without"),
    Flag("--elastic-timeout", float, own="seconds to wait for hosts and late ranks (600)"),
    Flag("--reset-limit", int, own="how often the ranks of a job may meet again"),
    Flag(
        "--blacklist-cooldown-range",
        float,
        own="seconds for which a host is set aside after repeated failures, at first and at most",
        num_values=2,
    ),
    Flag("--host-discovery-script", own="program that lists HOST:SLOTS, asked every second"),
)


def flag_named(name: str) -> Flag:
    """Return the flag of this name."""
    (found,) = [flag for flag in FLAGS if flag.name == name]
    return found


@dataclasses.dataclass
class Applied:
    """Effects of the flags that were given.

    Attributes:
        options: texts of the options of `Config` that they set.
        notices: what the user is told.
        origins: the flag that set each option.
    """

    options: dict[str, str] = dataclasses.field(default_factory=dict)
    notices: list[str] = dataclasses.field(default_factory=list)
    origins: dict[str, str] = dataclasses.field(default_factory=dict)


def apply(values: Mapping[str, Any], flags: Iterable[Flag] = FLAGS) -> Applied:
    """Turn the values of flags, by `dest`, into options and notices; None is a flag not given.

    Raises:
        ConfigError: a flag is refused, or a value makes no sense.
    """
    applied = Applied()
    for flag in flags:
        value = values.get(flag.dest)
        if value is None:
            continue
        if flag.refused and value is not False:
            raise ConfigError(f"{flag.name} cannot be used here: {flag.refused}")
        if flag.idle and value is not False:
            applied.notices.append(f"{flag.name} has no effect: {flag.idle}")
        if flag.option and not (flag.kind is bool and not flag.off and not value):
            set_option(applied, flag, value)
    return applied


def set_option(applied: Applied, flag: Flag, value: Any) -> None:
    """Let a flag set its option; of two that set the same time, the longer is taken."""
    try:
        text = flag.translate(value)
        Config.from_environment({variable(flag.option): text})
    except ConfigError as error:
        raise ConfigError(f"{flag.name}: {error}") from None
    known = applied.options.get(flag.option)
    if known is None or float(text) > float(known):
        applied.options[flag.option] = text
        applied.origins[flag.option] = flag.name
    if flag.note:
        applied.notices.append(flag.note)


def add_to(group: argparse._ArgumentGroup, add: Callable[..., None]) -> None:
    """Add all flags to a group of a parser.

    Args:
        group: where they are added.
        add: how, as `argparse.ArgumentParser.add_argument` with the group before its arguments.
    """
    for flag in FLAGS:
        names = [*(name for name in flag.others if len(name) == 2), flag.name]
        names += [name for name in flag.others if len(name) > 2]
        settings: dict[str, Any] = {"dest": flag.dest, "default": None, "help": describe(flag)}
        if flag.kind is bool:
            add(group, *names, action="store_const", const=True, **settings)
        else:
            counts = {"nargs": flag.num_values} if flag.num_values > 1 else {}
            metavar = {int: "N", float: "X"}.get(flag.kind, "TEXT")
            add(group, *names, type=flag.kind, metavar=metavar, **counts, **settings)
        if flag.off:
            hidden = {**settings, "help": argparse.SUPPRESS}
            add(group, *flag.off, action="store_const", const=False, **hidden)


def describe(flag: Flag) -> str:
    """Return what the help says of a flag: nothing of one that has no effect or is refused."""
    if flag.own:
        return flag.own
    if not flag.option:
        return argparse.SUPPRESS
    off = f" (off: {flag.off[0]})" if flag.off else ""
    return f"sets {variable(flag.option)}{off}"
