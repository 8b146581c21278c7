"""Programs of `kadril.ddl` and its examples on hosts with links of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from host_playground import HostPlayground

from kadril.testing import hosts

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.long

PROGRAM = """
import torch
import kadril.ddl as ddl
ddl.init(1, mode="-mode n -dump_iter 3")
for _ in range(3):
    ddl.all_reduce(torch.ones(25_000), check=0.01)
ddl.finalize()
"""


def test_the_slow_uplink_is_named(tmp_path: Path) -> None:
    with hosts(3, ranks=1, rate="200mbit", shared=[tmp_path]) as net:
        assert net.ssh_config  # or skip with the reason
        net.set_rate("20mbit", 2)
        playground = HostPlayground(net, tmp_path)
        try:
            script = playground.write("train.py", PROGRAM)
            words = ("--no-prefix", "-H", "host0:1,host1:1,host2:1", "python", script)
            result = playground.start(*words).finish(timeout=100)
        finally:
            playground.close()
        text = result.out.decode()
        assert result.code == 0, result.err.decode()
    assert "ddl: all-reduces 1 to 3, largest 97.7 KiB:" in text
    match = re.search(
        r"slow link +host\d \(rank \d\) to host2 \(rank 2\), (\d+\.\d) MB/s; .*", text
    )
    assert match is not None, text
    assert match[0].endswith("the uplink of host2 is slow")
    assert float(match[1]) < 5.0  # 20 Mbit/s are 2.5 MB/s, and the bucket of the shaper is free


@pytest.mark.timeout(300)
def test_the_hybrid_on_two_hosts(tmp_path: Path) -> None:
    """Data, space, optimizer and tiers at once; every rank compares with one process."""
    with hosts(2, ranks=4, shared=[tmp_path]) as net:
        assert net.ssh_config  # or skip with the reason
        playground = HostPlayground(net, tmp_path)
        try:
            words = ("--no-prefix", "-H", net.slots, "python", str(EXAMPLES / "hybrid.py"))
            result = playground.start(*words).finish(timeout=250)
        finally:
            playground.close()
    lines = result.out.decode().splitlines()
    assert result.code == 0, result.err.decode()
    assert sum("momentum of" in line for line in lines) == 8
    assert any("on 8 ranks of 2 hosts over tiered: as one process trains them" in x for x in lines)
