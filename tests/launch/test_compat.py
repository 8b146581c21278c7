"""`--compat horovod`: programs written for Horovod; what is about the flag is started for real."""

from __future__ import annotations

import os
import subprocess
import sys

from forked_program import run_forked
from launch_playground import SOURCE, Playground, Result

from kadril.compat import compat_path


def run(playground: Playground, program: str, *words: str, np: int = 2, **env: str) -> Result:
    script = playground.write("script.py", program)
    command = [sys.executable, script]
    return playground.start(
        "--compat", "horovod", "-np", str(np), *words, *command, env=env
    ).finish(timeout=60)


def forked(playground: Playground, program: str, *, np: int = 2) -> list[str]:
    """Run a program on ranks that have torch already; return what they print, sorted."""
    script = playground.write("script.py", program)
    return sorted(run_forked(script, num_ranks=np, compat="horovod"))


def lines(result: Result) -> list[str]:
    assert result.code == 0, result.err.decode()
    return sorted(result.out.decode().splitlines())


def test_it_is_found_before_an_installed_one_and_by_nobody_else(playground: Playground) -> None:
    installed = playground.directory / "installed"
    (installed / "horovod").mkdir(parents=True)
    (installed / "horovod" / "__init__.py").write_text("__version__ = 'the installed one'\n")
    path = os.pathsep.join([str(installed), str(SOURCE)])
    program = "import horovod; print(horovod.__version__)"
    assert lines(run(playground, program, np=1, PYTHONPATH=path)) == ["[0] 0.28.1"]
    plain = playground.run("-np", "1", playground.write("p.py", program), env={"PYTHONPATH": path})
    assert lines(plain) == ["[0] the installed one"]


def test_without_the_flag_there_is_none(playground: Playground) -> None:
    program = "import kadril, importlib.util; print(importlib.util.find_spec('horovod'))"
    assert lines(playground.run("-np", "1", playground.write("p.py", program))) == ["[0] None"]


def test_the_variables_of_horovodrun(playground: Playground) -> None:
    program = """
        import os
        names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE CONTROLLER CPU_OPERATIONS"
        print(*[os.environ["HOROVOD_" + name] for name in names.split()],
              bool(os.environ["HOROVOD_HOSTNAME"]), "HOROVOD_ELASTIC" in os.environ)
    """
    # Those of an outer job must not get through.
    outer = {"HOROVOD_RANK": "9", "HOROVOD_CROSS_SIZE": "9"}
    result = run(playground, program, np=3, **outer)
    assert lines(result) == [f"[{r}] {r} 3 {r} 3 0 1 gloo gloo True False" for r in range(3)]
    plain = playground.run("-np", "1", "sh", "-c", "echo ${HOROVOD_RANK:-none}", env=outer)
    assert lines(plain) == ["[0] none"]


def test_what_the_launcher_set_is_not_warned_of_by_the_ranks(playground: Playground) -> None:
    program = "import kadril; kadril.init(); print(kadril.size())"
    result = run(playground, program, HOROVOD_CONTROLLER="mpi")
    assert lines(result) == ["[0] 2", "[1] 2"]
    assert result.err.count(b"HOROVOD_CONTROLLER") == 1, result.err


def test_frameworks_that_are_not_there(playground: Playground) -> None:
    # Scripts ask for a framework and do without it on ModuleNotFoundError.
    modules = ["mxnet", "ray", "spark.torch"]
    program = f"""
        import importlib
        for module in {modules}:
            try:
                importlib.import_module(f"horovod.{{module}}")
            except ModuleNotFoundError as error:
                print(module, "|", error.name, "|", error)
    """
    told = [
        line.removeprefix("[0] ").split(" | ") for line in lines(run(playground, program, np=1))
    ]
    assert [module for module, _, _ in told] == modules
    for module, name, message in told:
        assert name == f"horovod.{module.partition('.')[0]}"
        assert "horovod.torch" in message


def test_tensorflow_that_is_not_installed(playground: Playground) -> None:
    program = """
        import sys
        sys.modules["tensorflow"] = None
        try:
            import horovod.tensorflow
        except ModuleNotFoundError as error:
            print(error.name, error)
    """
    (line,) = lines(run(playground, program, np=1))
    assert line.startswith("[0] tensorflow kadril.tensorflow needs TensorFlow")
    assert line.endswith("pip install 'kadril[tensorflow]'")


def test_what_needs_no_torch_loads_none(playground: Playground) -> None:
    program = """
        import sys
        import horovod, horovod.runner, horovod.data, horovod.data.data_loader_base
        import horovod.common.util, horovod.common.basics, horovod.common.process_sets
        import horovod.common.elastic
        from horovod import run
        from horovod.runner import run as same
        from horovod.common.exceptions import HorovodInternalError, HorovodVersionMismatchError
        from horovod.runner.common.util import hosts, timeout
        assert run is same
        print(sorted({"torch", "numpy"} & set(sys.modules)))
    """
    assert lines(run(playground, program, np=1)) == ["[0] []"]


def test_a_package_of_that_name_beside_the_script_is_told(playground: Playground) -> None:
    """The working directory may be a checkout of Horovod, whose examples would import it."""
    (playground.directory / "horovod").mkdir()
    (playground.directory / "horovod" / "__init__.py").write_text("")
    result = run(playground, "import horovod; print(horovod.__file__)", np=1)
    assert "lies beside the program" in result.report[0]


def test_every_name_is_that_of_kadril(playground: Playground) -> None:
    program = """
        import kadril.torch
        import horovod.torch as hvd
        for name in kadril.torch.__all__:
            if name == "broadcast_optimizer_state":  # does more, see below
                assert hvd.broadcast_optimizer_state is hvd.functions.broadcast_optimizer_state
            else:
                assert getattr(hvd, name) is getattr(kadril.torch, name), name
        assert set(hvd.__all__) == set(kadril.torch.__all__)
        scope = {}
        exec("from horovod.torch import *", scope)
        assert set(kadril.torch.__all__) <= set(scope)
        scope = {}
        exec("from horovod.torch.mpi_ops import *", scope)
        assert scope["allreduce_async_"] is kadril.torch.allreduce_async_
        try:
            from horovod.torch.mpi_ops import dance
        except ImportError:
            print("ok")
    """
    assert forked(playground, program, np=1) == ["ok"]


IMPORTS = """
    from horovod.torch.mpi_ops import allreduce, allreduce_async_, synchronize, poll, Average, Sum
    from horovod.torch.mpi_ops import init, rank, size, is_homogeneous, global_process_set
    from horovod.torch.functions import broadcast_parameters, broadcast_optimizer_state
    from horovod.torch.functions import broadcast_object, allgather_object
    from horovod.torch.compression import Compression, NoneCompressor, FP16Compressor
    from horovod.torch.optimizer import DistributedOptimizer
    from horovod.torch.sync_batch_norm import SyncBatchNorm
    from horovod.torch.elastic import TorchState, ElasticSampler, run
    from horovod.torch.elastic.state import TorchState as same_state
    from horovod.torch.elastic.sampler import ElasticSampler as same_sampler
    from horovod.common.process_sets import ProcessSet, add_process_set, remove_process_set
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
    from horovod.common.elastic import State, ObjectState
    from horovod.common.basics import HorovodBasics
    from horovod.common.util import nccl_built, mpi_built, gloo_built, cuda_built, _cache
    from horovod.runner import _HorovodArgs, run as run_function
    from horovod.runner.util.threads import in_thread, on_event, execute_function_multithreaded
    import horovod.torch as hvd
    import horovod.torch.elastic
    import kadril
    assert hvd.HorovodInternalError is HorovodInternalError is kadril.KadrilError
    assert hvd.elastic.run is run
    assert hvd.DistributedOptimizer is DistributedOptimizer
    assert same_state is TorchState and same_sampler is ElasticSampler
    basics = HorovodBasics(__file__, "mpi_lib_v2")
    basics.init()
    print(basics.rank(), basics.size(), gloo_built(), nccl_built(), basics.Sum == Sum == 1)
"""


def test_modules_that_scripts_import_from(playground: Playground) -> None:
    assert forked(playground, IMPORTS) == ["0 2 True 0 True", "1 2 True 0 True"]


OPERATIONS = """
    import torch
    import horovod.torch as hvd
    hvd.init()
    total = hvd.allreduce(torch.full((3,), float(hvd.rank() + 1)), name="x", op=hvd.Sum)
    everyone = hvd.allgather(torch.tensor([hvd.rank()]))
    first = hvd.broadcast(torch.tensor([hvd.rank() + 5]), root_rank=1)
    print(total.tolist(), everyone.tolist(), first.tolist())
    hvd.shutdown()
"""


def test_operations(playground: Playground) -> None:
    # `kadril run` starts a training by the flag in `test_horovod_guide.py`.
    assert forked(playground, OPERATIONS) == ["[3.0, 3.0, 3.0] [0, 1] [6]"] * 2


STATE = """
    import torch
    import horovod.torch as hvd
    from horovod.torch.functions import broadcast_optimizer_state
    assert hvd.broadcast_optimizer_state is broadcast_optimizer_state
    hvd.init()
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    known, fresh = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.SGD([known, fresh, frozen], lr=0.5, momentum=0.5, weight_decay=0.5)
    (known * 2).sum().backward()
    known.grad.fill_(2.0)
    optimizer.step()
    names = [("known", known), ("fresh", fresh), ("frozen", frozen)]
    optimizer = hvd.DistributedOptimizer(optimizer, names)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    print(known.grad.tolist(), fresh.grad.tolist(), frozen.grad, fresh.tolist())
    (fresh * (hvd.rank() + 1)).sum().backward()
    optimizer.synchronize()
    print(fresh.grad.tolist())
"""


def test_gradients_after_broadcasting_optimizer_state(playground: Playground) -> None:
    """Horovod leaves gradients of zeros where it made state; kadril left None."""
    first = "[2.0, 2.0] [0.0, 0.0] None [1.0, 1.0]"
    assert forked(playground, STATE) == ["[1.5, 1.5]", "[1.5, 1.5]", first, first]


def test_errors_are_horovods_own(playground: Playground) -> None:
    program = """
        import torch
        import horovod.torch as hvd
        from horovod.common.exceptions import HorovodInternalError
        hvd.init()
        try:
            hvd.allreduce(torch.ones(2 + hvd.rank()), name="x")
        except HorovodInternalError as error:
            print(type(error).__name__)
        try:
            hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="y", op=hvd.Sum))
            hvd.broadcast(torch.ones(1), root_rank=7)
        except ValueError:
            print("root")
    """
    assert forked(playground, program) == ["MismatchError", "MismatchError", "root", "root"]


def test_horovod_run_starts_ranks_that_find_it_too(playground: Playground) -> None:
    # A driver script: it is itself a job of one rank, and starts another.
    program = """
        import horovod

        def train(x):
            import kadril  # without torch, as nothing here needs it
            world = kadril.init()
            return x + world.rank, world.size, horovod.__version__

        if __name__ == "__main__":
            print(horovod.run(train, args=(10,), np=2))
            print(horovod.run(abs, (-20,), None, 1, use_gloo=True))
            try:
                horovod.run(train, (0,), num_proc=2, min_num_proc=1)
            except ValueError as error:
                print("refused" if "--min-np" in str(error) else error)
    """
    expected = [
        "[0] [(10, 2, '0.28.1'), (11, 2, '0.28.1')]",
        "[0] [20]",
        "[0] refused",
    ]
    assert lines(run(playground, program, np=1)) == expected


def test_importing_kadril_does_not_change_what_horovod_is() -> None:
    code = "import kadril.compat, sys; print(any('horovod_path' in each for each in sys.path))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
    assert str(compat_path("horovod")) not in sys.path
