"""The program of each rank of `kadril experiment`.

python -m kadril.experiment.program FILE [options]       (by `kadril experiment FILE -np N`)
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kadril.experiment.drawing.canvas import check_picture
from kadril.experiment.errors import ExperimentError
from kadril.experiment.experiments import FitExperiment, Result
from kadril.experiment.files.yaml_file import load_file
from kadril.experiment.models import GB, Model
from kadril.experiment.progress import ProgressBar
from kadril.partition.partition import world_partition
from kadril.transport.agreement import raise_on_all
from kadril.world import init, is_main, local_size, shutdown, size

__all__ = ["main", "parse", "run_experiment"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what a rank is told, besides the file."""
    parser.add_argument("--data", metavar="DIR", help="folder of the data: repo_path of datasets")
    parser.add_argument(
        "--with",
        dest="modules",
        action="append",
        default=[],
        metavar="FILE.py",
        help="Python file that registers classes of your own; may be repeated",
    )
    parser.add_argument("--grid", metavar="PxQ", help="ranks along rows and columns, such as 2x2")
    parser.add_argument(
        "--groups", type=int, metavar="N", help="groups of towers that share a batch"
    )
    parser.add_argument("--epochs", type=int, metavar="N", help="instead of num_epochs of the file")
    parser.add_argument(
        "--pretrain-epochs", type=int, metavar="N", help="instead of num_pretrain_epochs"
    )
    parser.add_argument("--sample-pct", type=float, metavar="PCT", help="instead of sample_pct")
    parser.add_argument("--seed", type=int, metavar="N", help="instead of rng_seed of the file")
    parser.add_argument("--checkpoint", metavar="FILE", help="keep the state after each epoch")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="FILE",
        help="go on from the checkpoint, or from FILE",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the costs of all epochs")
    parser.add_argument("--visualize", metavar="FILE", help="draw the filters of a GB model")
    parser.add_argument("--results", metavar="FILE", help="write costs and rates as JSON")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each rank")
    parser.add_argument("--no-progress", action="store_true", help="draw no progress bar")


def overrides_of(words: argparse.Namespace) -> dict[str, Any]:
    """Return the values that the command line gives instead of the file."""
    given = {
        "repo_path": words.data,
        "grid": None if words.grid is None else parse_grid(words.grid),
        "groups": words.groups,
        "num_epochs": words.epochs,
        "num_pretrain_epochs": words.pretrain_epochs,
        "sample_pct": words.sample_pct,
        "rng_seed": words.seed,
    }
    return {"*": {key: value for key, value in given.items() if value is not None}}


def parse_grid(text: str) -> list[int]:
    """Return the lengths of a grid such as 2x3.

    Raises:
        ExperimentError: it is none.
    """
    try:
        grid = [int(each) for each in text.lower().split("x")]
    except ValueError:
        grid = []
    if len(grid) != 2 or min(grid) < 1:
        raise ExperimentError(f"--grid takes rows x columns, such as 2x2, not {text!r}")
    return grid


def load_module(path: str) -> None:
    """Run a Python file that registers classes.

    Raises:
        ExperimentError: there is no such file, or it is no Python.
    """
    file = Path(path)
    if not file.is_file():
        raise ExperimentError(f"--with {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ExperimentError(f"--with {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ExperimentError(f"--with {path}: line {error.lineno}: {error.msg}") from error


def run_experiment(words: argparse.Namespace) -> Result:
    """Load and run an experiment, in a world that is there; collective over it."""
    resumed = words.resume or words.checkpoint
    if words.resume is not None and resumed is None:
        raise ExperimentError(
            "--resume needs --checkpoint FILE, or a FILE of its own, to go on from"
        )
    for path in words.modules:
        load_module(path)
    experiment = load_file(words.file, overrides_of(words), plain=size() == 1)
    if not isinstance(experiment, FitExperiment):
        raise ExperimentError(
            f"{words.file} describes a {type(experiment).__name__}, and no experiment: it begins"
            " with !obj:kadril.experiment.FitPredictErrorExperiment {...}"
        )
    if size() > 1 and not experiment.dist_flag:
        raise ExperimentError(
            f"{words.file} is not distributed, and there are {size()} ranks: run it with"
            " -np 1, or add 'dist_flag: True' and the suffix Dist (see the guide)"
        )
    experiment.checkpoint = words.checkpoint
    experiment.resumed = resumed if words.resume is not None else None
    model = experiment.model
    raise_on_all(
        world_partition().transport,
        "kadril experiment",
        output_problem(words, model),
        ExperimentError,
    )
    if not words.no_progress and is_main():
        model.on_batch = ProgressBar()
    result = experiment.run()
    draw(words, model, result)
    report(words, model, result)
    return result


def output_problem(words: argparse.Namespace, model: Model) -> ExperimentError | None:
    """Return why this rank could not write what was asked for; found before the training."""
    if words.visualize is not None and not isinstance(model, GB):
        return ExperimentError(
            f"--visualize draws the filters of a GB model, and {words.file} has a"
            f" {type(model).__name__}"
        )
    if not is_main():  # which writes everything
        return None
    for option in ("checkpoint", "plot", "visualize", "results"):
        target = getattr(words, option)
        if target is None:
            continue
        if not Path(target).absolute().parent.is_dir():
            folder = Path(target).parent
            return ExperimentError(
                f"--{option} {target}: there is no folder {folder}; make it first"
            )
        if Path(target).is_dir():
            return ExperimentError(f"--{option} {target} is a folder: give it the name of a file")
        try:
            if option in ("plot", "visualize"):
                check_picture(target)
        except ExperimentError as error:
            return error
    return None


def draw(words: argparse.Namespace, model: Model, result: Result) -> None:
    """Draw what was asked for; collective over the world."""
    if words.plot is not None and is_main():
        from kadril.experiment.drawing.curves import draw_curves

        draw_curves(result.history, words.plot)
    if not isinstance(model, GB):
        return
    target = words.visualize or (model.visualize if isinstance(model.visualize, str) else None)
    if model.visualize is True and target is None:
        target = f"{Path(words.file).stem}-filters.png"
    if target is not None:
        from kadril.experiment.drawing.filters import draw_filters

        filters = model.filters(model.trainable_layers[0])
        if is_main():
            draw_filters(filters, target)


def report(words: argparse.Namespace, model: Model, result: Result) -> None:
    """Write costs and rates, on one rank."""
    if not is_main():
        return
    towers = model.towers
    grid = "x".join(map(str, (1, 1) if towers is None else towers.grid))
    groups = 1 if towers is None else towers.groups
    rates = ", ".join(
        f"{name} {rate:.5f} %" for sets in result.misclassified for name, rate in sets.items()
    )
    print(
        f"{type(model).__name__} on {size()} rank(s), grid {grid}, {groups} group(s):"
        f" {result.seconds:.2f} s of training; misclassified: {rates or 'not asked for'}",
        flush=True,
    )
    if words.results is not None:
        found = {
            "ranks": size(),
            "grid": grid,
            "groups": groups,
            "seconds": result.seconds,
            "prediction_seconds": result.prediction_seconds,
            "history": [vars(record) for record in result.history],
            "misclassified": result.misclassified,
        }
        try:
            Path(words.results).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ExperimentError(f"--results {words.results}: {error}") from error


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what a rank is told."""
    parser = argparse.ArgumentParser(prog="kadril experiment", allow_abbrev=False)
    parser.add_argument("file")
    add_options(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run an experiment as one rank; return the exit code."""
    words = parse(argv)
    init()
    if words.threads or "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(words.threads or max(1, cores // local_size()))
    try:
        run_experiment(words)
    except ExperimentError as error:
        # Every rank finds the same: one says it.
        if is_main():
            print(f"kadril experiment: {error}", file=sys.stderr, flush=True)
        return 2
    finally:
        shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
