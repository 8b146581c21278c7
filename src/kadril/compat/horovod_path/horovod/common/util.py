"""The helpers that scripts and libraries import from Horovod."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "check_num_rank_power_of_2",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
    "support_non_legacy_keras_optimizers",
]

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])


def _cache(f: Function) -> Function:
    """Make a function remember its results by its arguments, which must be hashable."""
    return cast("Function", functools.cache(f))


def get_ext_suffix() -> str:
    """Return the suffix of compiled modules."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path of a compiled module beside the file `pkg_path`."""
    *folders, name = args
    return str(Path(pkg_path).parent.joinpath(*folders, name + get_ext_suffix()))


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is a part for this framework: for torch, where torch is installed."""
    return ext_base_name == "torch" and importlib.util.find_spec("torch") is not None


def _check_extension_lambda(
    ext_base_name: str, fn: Callable[[Any], Any], fn_desc: str, verbose: bool
) -> Any:
    """Ask a function about the module of a framework; None without the module, or if it fails.

    Args:
        ext_base_name: name of the framework, such as "torch".
        fn: called with the module.
        fn_desc: what it finds out, for `verbose`.
        verbose: whether to print the answer.
    """
    result = None
    if extension_available(ext_base_name):
        with suppress(Exception):
            result = fn(importlib.import_module(f"kadril.{ext_base_name}"))
    if verbose:
        print(f"{ext_base_name}: {'' if result else 'not '}{fn_desc}")  # noqa: T201 - asked for
    return result


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Make sure that there is a part for a framework, such as "horovod.torch".

    Raises:
        ImportError: there is none.
    """
    framework = ext_name.removeprefix("horovod.")
    if not extension_available(framework):
        reason = "torch is not installed" if framework == "torch" else "kadril has only torch"
        raise ImportError(f"there is no {ext_name} here: {reason}", name=ext_name)


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework sees a GPU."""
    if not extension_available(ext_base_name):
        return False
    return bool(importlib.import_module("torch").cuda.is_available())


def built(name: str) -> Any:
    """Return what `kadril.torch` reports about a library."""
    return getattr(importlib.import_module("kadril.torch"), f"{name}_built")()


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI can carry data."""
    return bool(built("mpi"))


def gloo_built(verbose: bool = False) -> bool:
    """Whether gloo can carry data."""
    return bool(built("gloo"))


def nccl_built(verbose: bool = False) -> int:
    """NCCL's version as a number, or 0 where there is none."""
    return int(built("nccl"))


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM's DDL can carry data."""
    return bool(built("ddl"))


def ccl_built(verbose: bool = False) -> bool:
    """Whether oneCCL can carry data."""
    return bool(built("ccl"))


def cuda_built(verbose: bool = False) -> bool:
    """Whether CUDA can be used."""
    return bool(built("cuda"))


def rocm_built(verbose: bool = False) -> bool:
    """Whether ROCm can be used."""
    return bool(built("rocm"))


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set variables of the environment for a while; None leaves one alone."""
    wanted = {name: value for name, value in kwargs.items() if value is not None}
    old = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """Return a function that chooses the operation by `op` and the older `average`."""

    def choose(op: Any, average: Any) -> Any:
        if op is not None and average is not None:
            raise ValueError("op takes the place of average: give one of them")
        if average is None:
            return reduce_ops.Average if op is None else op
        warnings.warn("average is deprecated, use op", DeprecationWarning, stacklevel=2)
        return reduce_ops.Average if average else reduce_ops.Sum

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two. Adasum does not ask for it in kadril."""
    return num_rank > 0 and num_rank.bit_count() == 1


check_num_rank_power_of_2 = num_rank_is_power_2


def split_list(l: Sequence[Item], n: int) -> list[Sequence[Item]]:  # noqa: E741 - Horovod's name
    """Cut a list into n parts whose lengths differ by at most one, the longer ones first."""
    length, num_longer = divmod(len(l), n)
    starts = [part * length + min(part, num_longer) for part in range(n + 1)]
    return [l[start:end] for start, end in itertools.pairwise(starts)]


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Do nothing: kadril is built against no version of a framework."""


def support_non_legacy_keras_optimizers(k: Any) -> bool:
    """Whether a module `keras` has the optimizers of version 2.11 and later."""
    return is_version_greater_equal_than(str(k.__version__), "2.11.0")


def is_iterable(x: object) -> bool:
    """Whether one can loop over it."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version, such as "2.13.0+cpu", is not older than another of three numbers."""
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", target):
        raise ValueError(f"the version to compare with must be like 1.2.3, got {target!r}")
    return release(ver) >= release(target)


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, such as (2, 13, 0) of "2.13.0+cpu"."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    numbers = [int(number) for number in match[0].split(".")]
    return (*numbers, *[0] * (3 - len(numbers)))
