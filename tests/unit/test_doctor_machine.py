"""Facts about the machine; limits of containers from file trees as kernels show them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from kadril.observe.cgroup import cpu_limit, memory_limit
from kadril.observe.machine import look_at_machine

GIB = 1 << 30

V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_no_cgroups_no_limits(tmp_path: Path) -> None:
    assert cpu_limit(tmp_path) is None
    assert memory_limit(tmp_path) is None


def test_version_2(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNTS,
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/step/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/memory.max": f"{2 * GIB}\n",
        },
    )
    assert cpu_limit(tmp_path) == 1.5
    assert memory_limit(tmp_path) == 2 * GIB, "the limit of a group above holds too"


def test_the_least_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNTS,
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
        },
    )
    assert cpu_limit(tmp_path) == 0.5


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNTS,
            "proc/self/cgroup": "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cpu_limit(tmp_path) == 3.0
    assert memory_limit(tmp_path) == GIB


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNTS.replace(" / /sys", " /docker/4711 /sys"),
            "proc/self/cgroup": "0::/docker/4711\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
        },
    )
    assert cpu_limit(tmp_path) == 2.0


def test_this_machine() -> None:
    machine = look_at_machine()
    assert machine.cpu
    assert set(machine.cores) == os.sched_getaffinity(0)
    assert machine.num_cores >= len(machine.cores)
    assert machine.memory == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.01
    )
    assert 0 < machine.free_memory <= machine.memory
    assert machine.architecture == platform.machine()
    assert machine.libc.startswith("glibc") or machine.libc == "unknown"
