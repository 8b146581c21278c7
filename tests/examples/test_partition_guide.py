"""docs/guides/partitions.md: its program runs as it stands, with the command it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "partitions.md").read_text("utf-8")


def test_the_program_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "split.py").write_text(program, encoding="utf-8")
    assert "\nkadril run -np 4 split.py\n" in GUIDE
    done = subprocess.run(
        [sys.executable, "-m", "kadril", "run", "-np", "4", "split.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0] each worker holds (2, 4, 8, 8) of (2, 4, 16, 16)\n"


def test_every_name_exists() -> None:
    import kadril.nn

    names = re.findall(r"`([A-Z]\w+)", GUIDE)
    assert names
    for name in names:
        assert hasattr(kadril.nn, name) or hasattr(kadril, name), name
