"""HOROVOD_* variables: which option of kadril each one sets, or why it has nothing to say here.

honoured    sets an option; the KADRIL_* variable of that option wins over it
idle        has no meaning in kadril: warned about, with the reason
building    told Horovod's build what to do: warned about, all in one line
silent      nothing is lost by not reading it, or it is read elsewhere
others      unknown: warned about, with the nearest name that is known
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kadril.errors import ConfigError

__all__ = [
    "HONOURED",
    "IDENTITY",
    "IDLE",
    "NEVER",
    "Origin",
    "python_log_level",
    "read_options",
    "remarks",
]

# Seconds that stand for "never": a year. Infinity is not a time for the engines below.
NEVER = 31_536_000

# Who a rank is. `kadril run --compat horovod` sets them for scripts that read them.
IDENTITY = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)

SILENT = {
    *IDENTITY,
    "HOROVOD_HOSTNAME",
    "HOROVOD_DYNAMIC_PROCESS_SETS",  # process sets can be added at any time
    "HOROVOD_ELASTIC",
}

FALSE_WORDS = {"0", "false", "no", "off", ""}
TRUE_WORDS = {"1", "true", "yes", "on"}


class Origin(NamedTuple):
    """An option as a variable of Horovod gives it."""

    variable: str
    text: str  # as the KADRIL_* variable would have it


class Honoured(NamedTuple):
    """A variable that sets an option."""

    option: str
    translate: Callable[[str], str] = str


def inverted(text: str) -> str:
    """Invert a switch, where one variable turns off what the other turns on."""
    return "1" if text.strip().lower() in FALSE_WORDS else "0"


def switch(text: str) -> str:
    """Horovod takes an empty value as off."""
    return "0" if text.strip().lower() in FALSE_WORDS else text


def zero_is_never(text: str) -> str:
    """Horovod waits for ever where it is told to wait 0 seconds."""
    return str(NEVER) if re.fullmatch(r"\s*0+(\.0*)?\s*", text) else text


def python_log_level(text: str) -> str:
    """A level of Horovod's log as Python's logging calls it.

    Raises:
        ConfigError: there is no such level.
    """
    level = text.strip().upper()
    known = {"TRACE": "DEBUG", "DEBUG": "DEBUG", "INFO": "INFO", "WARNING": "WARNING"}
    known |= {"ERROR": "ERROR", "FATAL": "CRITICAL"}
    if level not in known:
        raise ConfigError(f"must be one of {', '.join(known)}, got {text!r}")
    return known[level]


HONOURED = {
    "HOROVOD_FUSION_THRESHOLD": Honoured("fusion_threshold"),
    "HOROVOD_CACHE_CAPACITY": Honoured("cache_capacity"),
    "HOROVOD_TIMELINE": Honoured("timeline"),
    "HOROVOD_TIMELINE_MARK_CYCLES": Honoured("timeline_mark_cycles", switch),
    "HOROVOD_STALL_CHECK_DISABLE": Honoured("stall_check", inverted),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": Honoured("stall_warning"),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": Honoured("patience", zero_is_never),
    "HOROVOD_START_TIMEOUT": Honoured("connect_timeout"),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": Honoured("connect_timeout"),
    "HOROVOD_LOG_LEVEL": Honoured("log_level", python_log_level),
}

NO_POLL = "kadril does not poll: a request wakes the engine at once"
NO_LEVELS = "the transport decides how a collective goes; ranks of one host share memory"
NO_TUNER = "there is no tuner; set KADRIL_FUSION_THRESHOLD"
TRANSPORT = "ranks of one host share memory; KADRIL_TRANSPORT chooses another transport"
NO_SERVER = "ranks meet over a private socket, not over a server of the launcher"
NO_STREAMS = "kadril has no streams or events of its own on devices"
NO_XLA = "there are no XLA operations"
NO_SPARK = "kadril does not run in Spark"
NOT_MPI = "mpi4py decides how MPI is started"

IDLE = {
    "HOROVOD_CYCLE_TIME": NO_POLL,
    "HOROVOD_HIERARCHICAL_ALLREDUCE": NO_LEVELS,
    "HOROVOD_HIERARCHICAL_ALLGATHER": NO_LEVELS,
    "HOROVOD_TORUS_ALLREDUCE": NO_LEVELS,
    "HOROVOD_AUTOTUNE": NO_TUNER,
    "HOROVOD_AUTOTUNE_LOG": NO_TUNER,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": NO_TUNER,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": NO_TUNER,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": NO_TUNER,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": NO_TUNER,
    "HOROVOD_CONTROLLER": TRANSPORT,
    "HOROVOD_CPU_OPERATIONS": TRANSPORT,
    "HOROVOD_GLOO_IFACE": "set GLOO_SOCKET_IFNAME, which torch's gloo reads",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": NO_SERVER,
    "HOROVOD_GLOO_RENDEZVOUS_PORT": NO_SERVER,
    "HOROVOD_NUM_NCCL_STREAMS": NO_STREAMS,
    "HOROVOD_BATCH_D2D_MEMCOPIES": NO_STREAMS,
    "HOROVOD_ENABLE_ASYNC_COMPLETION": NO_STREAMS,
    "HOROVOD_DISABLE_NVTX_RANGES": "kadril marks no NVTX ranges",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is run as a whole; KADRIL_FUSION_THRESHOLD=0 stops"
    " the fusion of all else",
    "HOROVOD_ENABLE_XLA_OPS": NO_XLA,
    "HOROVOD_ELASTIC_TIMEOUT": "`kadril run` starts a fixed number of ranks",
    "HOROVOD_THREAD_AFFINITY": "`kadril run --bind` binds ranks, with their threads, to cores",
    "HOROVOD_MPI_THREADS_DISABLE": NOT_MPI,
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum does not go in chunks",
    "HOROVOD_CCL_CACHE": "there is no transport over oneCCL",
    "HOROVOD_CCL_BGT_AFFINITY": "there is no transport over oneCCL",
    "HOROVOD_LOG_HIDE_TIME": "Python's logging decides how the lines of a log look",
    "HOROVOD_SPARK_START_TIMEOUT": NO_SPARK,
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": NO_SPARK,
    "HOROVOD_SPARK_PYTHONPATH": NO_SPARK,
}

# Switches that ask for what is the case anyway where they are off.
SWITCHES = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_HIERARCHICAL_ALLGATHER",
    "HOROVOD_TORUS_ALLREDUCE",
    "HOROVOD_AUTOTUNE",
    "HOROVOD_ENABLE_ASYNC_COMPLETION",
    "HOROVOD_DISABLE_GROUP_FUSION",
    "HOROVOD_ENABLE_XLA_OPS",
    "HOROVOD_MPI_THREADS_DISABLE",
    "HOROVOD_LOG_HIDE_TIME",
}

BUILDING = re.compile(
    r"HOROVOD_(WITH(OUT)?_\w+|GPU|GPU_\w+|(NCCL|CUDA|ROCM)_\w+|BUILD_\w+|CMAKE|SKIP_COMPILE|DEBUG"
    r"|ALLOW_MIXED_GPU_IMPL)"
)


def read_options(environment: Mapping[str, str]) -> dict[str, Origin]:
    """The options that variables of Horovod set.

    Of two variables that set the same time, the longer time is taken.

    Raises:
        ConfigError: a value has no meaning.
    """
    found: dict[str, Origin] = {}
    for name, (option, translate) in HONOURED.items():
        if name not in environment:
            continue
        try:
            origin = Origin(name, translate(environment[name]))
        except ConfigError as error:
            raise ConfigError(f"{name} {error}") from None
        known = found.get(option)
        if known is None or seconds(origin) > seconds(known):
            found[option] = origin
    return found


def seconds(origin: Origin) -> float:
    """A time to compare with another; one that cannot be read comes last, to be complained of."""
    try:
        return float(origin.text)
    except ValueError:
        return float("inf")


def remarks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return notes on variables of Horovod that have no effect, by name of the variable."""
    said: dict[str, str] = {}
    for_building = []
    for name in sorted(environment):
        if not name.startswith("HOROVOD_") or name in HONOURED or name in SILENT:
            continue
        if name in IDLE:
            is_off = environment[name].strip().lower() in FALSE_WORDS
            if not (name in SWITCHES and is_off):
                said[name] = f"{name} has no effect: {IDLE[name]}"
        elif BUILDING.fullmatch(name):
            for_building.append(name)
        else:
            nearest = difflib.get_close_matches(name, [*HONOURED, *IDLE], n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            said[name] = f"{name} is not a variable that kadril or Horovod reads{hint}"
    if for_building:
        names = ", ".join(for_building)
        said[for_building[0]] = f"{names}: no effect; said how Horovod was to be built"
    return said
