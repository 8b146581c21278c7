"""Variables that Slurm sets for its processes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

__all__ = [
    "PLACES",
    "is_single_task",
    "is_step",
    "job_name",
    "number_of_tasks",
    "shows_others",
    "store_address",
]

# The variables that say which task of a step a process is.
PLACES = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")

# Ids from here on are not steps of srun: the shell of sbatch, the shell of salloc, the extern step.
FIRST_SPECIAL_STEP = 0xFFFFFFF0

# Below 32768, where Linux starts to hand out ports by itself.
FIRST_PORT, NUM_PORTS = 16384, 16384


def is_step(environment: Mapping[str, str]) -> bool:
    """Whether `srun` started this process as one of several tasks.

    The shell of a bare `sbatch` or `salloc` has SLURM_PROCID too, and is not a rank.
    """
    step = environment.get("SLURM_STEP_ID", "")
    num_tasks = number_of_tasks(environment)
    return (
        step.isdecimal()
        and int(step) < FIRST_SPECIAL_STEP
        and "SLURM_PROCID" in environment
        and num_tasks.isdecimal()
        and int(num_tasks) > 1
    )


def shows_others(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of several tasks, however few of Slurm's variables are left.

    A program that is started once, by hand, in the shell of `sbatch`, `salloc` or `srun --pty` is
    alone: that shell is task 0, and SLURM_NTASKS counts what `srun` *would* start there. A task
    beyond 0, or SLURM_STEP_NUM_TASKS above 1, which only the tasks of a step have, is one of
    several.
    """
    task = environment.get("SLURM_PROCID", "")
    num_tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    is_later = task.isdecimal() and int(task) > 0
    return is_later or (task.isdecimal() and num_tasks.isdecimal() and int(num_tasks) > 1)


def is_single_task(environment: Mapping[str, str]) -> bool:
    """Whether it was `srun` that spoke PMIx to this process, and started one task.

    So does `srun --pty bash`, in whose shell a program is alone.
    """
    is_of_srun = environment.get("PMIX_NAMESPACE", "").startswith("slurm.pmix.")
    return is_of_srun and environment.get("SLURM_STEP_NUM_TASKS") == "1"


def number_of_tasks(environment: Mapping[str, str]) -> str:
    """Number of tasks of this step; SLURM_NTASKS may be that of the whole job."""
    return environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "")


def job_name(environment: Mapping[str, str]) -> str:
    """A name for this step that no other step of the cluster has."""
    return f"slurm-{environment.get('SLURM_JOB_ID', '')}.{environment.get('SLURM_STEP_ID', '')}"


def store_address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port where rank 0 can serve; the same on every rank, None if unknown."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    host = first_host(nodes)
    if not host:
        return None
    is_one_node = environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_NNODES")) == "1"
    port = FIRST_PORT + zlib.crc32(job_name(environment).encode()) % NUM_PORTS
    return ("127.0.0.1" if is_one_node else host), port


def first_host(nodes: str) -> str:
    """The first host of a list like `rack[2-4,7]n[01-12],login1`: here `rack2n01`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group()) if first else ""
