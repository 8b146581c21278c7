"""-dump_iter of `kadril.ddl` on three hosts, of which one has a slow uplink: it is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from host_playground import HostPlayground

from kadril.testing import hosts

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
