"""Programs in which `kadril.ddl.init()` opens the world itself: its options, end and errors."""

from __future__ import annotations

import textwrap
from pathlib import Path

from forked_program import run_forked


def run(directory: Path, program: str, num_ranks: int) -> list[str]:
    """Run a program on ranks that no world was opened for; return what it prints, by rank."""
    path = directory / "program.py"
    path.write_text(textwrap.dedent(program), encoding="utf-8")
    return run_forked(path, num_ranks=num_ranks)


def test_it_leaves_a_world_that_it_opened(tmp_path: Path) -> None:
    """A wrong product is an error on every rank, after which other options can be tried."""
    lines = run(
        tmp_path,
        """
        import kadril, torch
        import kadril.ddl as ddl
        try:
            ddl.init(1, "-mode n:2x3")
        except kadril.ConfigError as error:
            print(error, kadril.is_initialized())
        rank, size, _ = ddl.init(1, "-mode n:2x1")
        print(rank, size, ddl.all_reduce(torch.ones(1)).item(), kadril.is_initialized())
        ddl.finalize()
        print(ddl.is_initialized(), kadril.is_initialized())
        """,
        2,
    )
    message = "-mode n:2x3: 2 x 3 = 6, but 2 learners run; try n:2x1, or start 6 learners False"
    assert lines == [
        *(message, "0 2 2.0 True", "False False"),
        *(message, "1 2 2.0 True", "False False"),
    ]


def test_racks_of_a_mode_are_tiers(tmp_path: Path) -> None:
    """Four hosts in two racks: `-mode n:2x2x2` says which hosts are near each other."""
    lines = run(
        tmp_path,
        """
        import os
        os.environ["KADRIL_HOST_LABEL"] = f"host {int(os.environ['KADRIL_RANK']) // 2}"
        import kadril, torch
        import kadril.ddl as ddl
        ddl.init(1, "-mode n:2x2x2")
        print(kadril.current().config.tiers, kadril.current().transport.topology.groups)
        print(ddl.num_hosts(), ddl.all_reduce(torch.ones(50_000)).sum().item())
        ddl.finalize()
        """,
        8,
    )
    assert lines == ["2x2x2 (((0, 1), (2, 3)),)", "4 400000.0"] * 8


def test_alone(tmp_path: Path) -> None:
    lines = run(
        tmp_path,
        """
        import torch
        import kadril.ddl as ddl
        print(tuple(ddl.init(4, "-mode n:1")), ddl.all_reduce_n([torch.ones(2)], check=0.1))
        """,
        1,
    )
    assert lines == ["(0, 1, 0) [tensor([1., 1.])]"]
