"""`kadril experiment`: from the command line to rates, and mistakes that end with code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forked_program import run_forked

from kadril.experiment.program import main
from kadril.launch.verbs import experiment_command

FILE = """
!obj:kadril.experiment.FitPredictErrorExperiment {
  dist_flag: &df True,
  datasets: [!obj:kadril.experiment.Digits {dist_flag: *df, sample_pct: 20}],
  model: !obj:kadril.experiment.ConvnetDist {
    num_epochs: 2, batch_size: 50, learning_rate: 0.1,
    layers: [
      !obj:layer.ConvLayerDist {name: a, nifm: 1, nofm: 6, ifmshape: [8, 8], fshape: [3, 3]},
      !obj:layer.LayerWithNoBiasDist {name: c, nin: 216, nout: 10,
        activation: !obj:kadril.experiment.Logistic {}},
    ],
  },
}
"""


def experiment(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kadril", "experiment", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(FILE)
    done = experiment(str(file), "-np", "2", "--checkpoint", str(tmp_path / "state.pt"))
    assert done.returncode == 0, done.stderr
    assert "ConvnetDist on 2 rank(s), grid 2x1, 1 group(s)" in done.stdout
    assert "train epoch 1 [########################] 6/6 batches" in done.stderr
    assert "total training error" in done.stderr
    assert "test set misclass rate" in done.stderr
    # The program of a rank, in this process, which has torch already.
    assert main([str(file), "--checkpoint", str(tmp_path / "state.pt"), "--resume"]) == 0
    again = capsys.readouterr()
    assert "Convnet on 1 rank(s)" in again.out
    assert "total training error" not in again.err
    rates = [text.partition("misclassified")[2] for text in (done.stdout, again.out)]
    assert rates[0] == rates[1] != ""


PICTURES = """
import sys
from pathlib import Path

import torch

from kadril.experiment.drawing.filters import mosaic
from kadril.experiment.drawing.towers import draw_towers
from kadril.experiment.program import main

page = mosaic(torch.arange(2 * 3 * 4.0).view(2, 3, 2, 2))
assert page.shape == (7, 10) and float(page.max()) == 1.0
folder = Path(sys.argv[1])
draw_towers(folder / "towers.svg", (28, 28), (5, 5), (2, 2))
words = [str(folder / "gb.yaml"), "--plot", str(folder / "curves.png"), "--no-progress"]
assert main([*words, "--visualize", str(folder / "filters.png")]) == 0
"""

GB = """
!obj:kadril.experiment.FitExperiment {
  datasets: [!obj:kadril.experiment.Digits {sample_pct: 10}],
  model: !obj:kadril.experiment.GB {
    num_epochs: 1, batch_size: 50, learning_rate: 0.1, visualize: True,
    layers: [
      !obj:layer.LocalFilteringLayer {name: a, nifm: 1, nofm: 3, ifmshape: [8, 8], fshape: [3, 3]},
      !obj:layer.L2PoolingLayer {name: b, nifm: 3, ifmshape: [6, 6], fshape: [3, 3]},
      !obj:layer.LayerWithNoBias {name: c, nin: 48, nout: 10,
        activation: !obj:kadril.experiment.Logistic {}},
    ],
  },
}
"""


def test_pictures(tmp_path: Path) -> None:
    """Drawing takes a process of its own, a rank: matplotlib keeps the files of its fonts open."""
    pytest.importorskip("matplotlib")
    (tmp_path / "gb.yaml").write_text(GB)
    program = tmp_path / "pictures.py"
    program.write_text(PICTURES)
    (line,) = run_forked(program, str(tmp_path), num_ranks=1)
    assert line.endswith("misclassified: not asked for")
    for name in ("curves.png", "filters.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "towers.svg").read_text().count("<!-- rank ") == 8


TOLD = """
import contextlib, io, sys
from kadril.experiment.program import main

said = io.StringIO()
with contextlib.redirect_stderr(said):
    code = main(sys.argv[1:])
print(code, *said.getvalue().splitlines(), sep="|")
"""


def test_a_mistake_in_the_file_is_told_by_one_rank(tmp_path: Path) -> None:
    file, program = tmp_path / "wrong.yaml", tmp_path / "told.py"
    file.write_text(FILE.replace("nofm: 6", "nfom: 6"))
    program.write_text(TOLD)
    first, second = run_forked(program, str(file))
    assert first.startswith("2|kadril experiment: ")
    assert "takes no key 'nfom'; did you mean 'nofm'?" in first
    assert f"{file}:8:" in first
    assert second == "2"


@pytest.mark.long  # what is told is seen above every day, and exit codes of ranks by other tests
def test_a_mistake_in_the_file_ends_the_command(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(FILE.replace("nofm: 6", "nfom: 6"))
    done = experiment(str(file), "-np", "2")
    assert done.returncode == 2
    # Once when it happens, and once more in the launcher's summary.
    assert done.stderr.count("takes no key 'nfom'; did you mean 'nofm'?") <= 2
    assert done.stderr.startswith("kadril experiment: ")
    assert "Traceback" not in done.stderr


def test_words_that_make_no_sense(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert experiment_command.main([str(tmp_path / "no.yaml")]) == 2
    assert "there is no file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        experiment_command.main(["new", "optimizer", "Mine"])
    assert ended.value.code == 2
    with pytest.raises(SystemExit):
        experiment_command.main(["--help"])
    assert "--checkpoint FILE" in capsys.readouterr().out
