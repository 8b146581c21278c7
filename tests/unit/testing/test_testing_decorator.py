"""The decorator, and what importing the kit costs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import kadril.testing
from kadril.testing import ranks
from kadril.testing.decorator import ranks_options
from kadril.testing.messages import WorldKey
from kadril.testing.worlds import world_config, world_key


def body(world: object) -> None: ...


def bodiless() -> None: ...


def test_what_was_asked_for_is_noted_and_the_function_stays() -> None:
    decorated = ranks(1, 2, transports=("shm", "c10d"), timeout=5.0, patience=0.5)(body)
    assert decorated is body
    asked = ranks_options(body)
    assert asked is not None
    assert (asked.sizes, asked.transports) == ((1, 2), ("shm", "c10d"))
    assert (asked.timeout, asked.options) == (5.0, {"patience": 0.5})
    assert ranks_options(bodiless) is None


@pytest.mark.parametrize(
    ("sizes", "transports", "message"),
    [
        ((), ("shm",), "at least one size"),
        ((0,), ("shm",), "1 to 16 ranks, not 0"),
        ((17,), ("shm",), "1 to 16 ranks, not 17"),
        ((2,), ("udp",), "no transport 'udp'"),
    ],
)
def test_what_cannot_be_had_is_refused(
    sizes: tuple[int, ...], transports: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ranks(*sizes, transports=transports)


def test_a_test_without_a_world_is_refused() -> None:
    with pytest.raises(TypeError, match="needs an argument `world`"):
        ranks(2)(bodiless)


def test_options_are_part_of_what_makes_a_world() -> None:
    assert world_key("shm", 2, {"b": 1, "a": 2}) == world_key("shm", 2, {"a": 2, "b": 1})
    assert world_key("shm", 2, {"patience": 1.0}) != world_key("shm", 2, {})
    config = world_config(WorldKey("mpi:mpich", 2, (("patience", 0.5),)), 0)
    assert (config.transport, config.patience) == ("mpi", 0.5)


def test_every_name_of_the_kit_can_be_had() -> None:
    for name in kadril.testing.__all__:
        assert getattr(kadril.testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kadril.testing.nothing


def test_importing_the_kit_loads_neither_torch_nor_pytest() -> None:
    """The plugin is loaded in every pytest session of every project where kadril is installed."""
    code = """if True:
        import sys
        from kadril.testing import ranks, no_leaks, RanksFailed
        print('torch' in sys.modules, 'pytest' in sys.modules)
        import kadril.testing.plugin
        print('torch' in sys.modules)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.split() == ["False", "False", "False"], result.stderr
