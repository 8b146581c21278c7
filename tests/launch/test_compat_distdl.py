"""`--compat distdl`: programs written for DistDL, with MPI and without."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from forked_program import run_forked
from launch_playground import SOURCE, Playground, Result

from kadril.cli import main
from kadril.compat import compat_path
from kadril.testing.mpi_worker_pool import OPENMPI_DIRECTORY, Unavailable, find_mpi


def cache_of_torch(playground: Playground) -> dict[str, str]:
    """Optimizers make a directory for compiled code in TMPDIR, and leave it there."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(playground.directory / "cache")}


def lines(result: Result) -> list[str]:
    assert result.code == 0, result.err.decode()
    return sorted(result.out.decode().splitlines())


# The example of its documentation, on fewer workers, one of which is in no partition.
ALL_SUM_REDUCE = """
    import numpy as np
    import torch
    from mpi4py import MPI
    from distdl.backends.mpi.partition import MPIPartition
    from distdl.nn import AllSumReduce
    from distdl.utilities.torch import zero_volume_tensor

    P_world = MPIPartition(MPI.COMM_WORLD)
    P_x_base = P_world.create_partition_inclusive(np.arange(0, 4))
    P_x = P_x_base.create_cartesian_topology_partition([2, 1, 2])
    x_local_shape = np.array([7, 5])
    reduce_dims = (1, 2)
    layer = AllSumReduce(P_x, reduce_dims)
    x = zero_volume_tensor()
    if P_x.active:
        x = torch.full(tuple(x_local_shape), 1.0 + P_x.rank)
    y = layer(x)
    print(P_world.rank, tuple(y.shape), y.unique().tolist())
"""


def test_the_example_of_the_documentation(playground: Playground) -> None:
    script = playground.write("script.py", ALL_SUM_REDUCE)
    assert run_forked(script, num_ranks=5, compat="distdl") == [
        "0 (7, 5) [3.0]",
        "1 (7, 5) [3.0]",
        "2 (7, 5) [7.0]",
        "3 (7, 5) [7.0]",
        "4 (0,) []",
    ]


# Communicators, then LeNet-5: convolutions on 1 x 1 x 2 x 2, linear layers with weights on 2 x 2.
LENET = """
    import numpy as np
    import torch
    from mpi4py import MPI

    import distdl
    from distdl.backends.mpi.partition import MPIPartition
    from distdl.functional import ZeroVolumeCorrectorFunction
    from distdl.utilities.slicing import assemble_slices, compute_start_index, compute_stop_index
    from distdl.utilities.torch import zero_volume_tensor

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    P_world = MPIPartition(MPI.COMM_WORLD)
    P_world._comm.Barrier()
    assert P_world == distdl.backend.backend.Partition(MPI.COMM_WORLD)
    assert (P_world.rank, P_world.size) == (MPI.COMM_WORLD.Get_rank(), 4)

    # Partitions of a communicator of the program's own, as tests make them.
    odd = MPIPartition(MPI.COMM_WORLD.Split(P_world.rank % 2))
    assert (odd.rank, odd.size) == (P_world.rank // 2, 2)
    total = np.zeros(1)
    odd._comm.Reduce(np.array([1.0 + P_world.rank]), total, op=MPI.SUM, root=0)
    assert total[0] == ([4.0, 6.0][P_world.rank % 2] if odd.rank == 0 else 0.0)
    low = odd.create_partition_inclusive([0])
    if low.active:
        assert low._comm.gather("mine", root=0) == ["mine"]
    else:
        assert low.rank == MPI.PROC_NULL and low.size == -1 and low.index is None
        assert low._comm == MPI.COMM_NULL
    pair = P_world.create_partition_inclusive([3, 1])
    if pair.active:
        most = np.zeros(1)
        pair._comm.Allreduce(np.array([float(P_world.rank)]), most, op=MPI.MAX)
        assert most[0] == 3.0
    low.deactivate()
    odd.deactivate()

    P_base = P_world.create_partition_inclusive(np.arange(4))
    P_0 = P_base.create_partition_inclusive([0])
    P_root = P_0.create_cartesian_topology_partition([1, 1, 1, 1])
    P_root_2d = P_0.create_cartesian_topology_partition([1, 1])
    P_lo = P_base.create_partition_inclusive(np.arange(0, 2))
    P_hi = P_base.create_partition_inclusive(np.arange(2, 4))
    P_conv = P_base.create_cartesian_topology_partition([1, 1, 2, 2])
    P_flat = P_base.create_cartesian_topology_partition([1, 4, 1, 1])
    P_flat_2d = P_base.create_cartesian_topology_partition([1, 4])
    P_fc_in = P_lo.create_cartesian_topology_partition([1, 2])
    P_fc_out = P_hi.create_cartesian_topology_partition([1, 2])
    P_fc_mtx = P_base.create_cartesian_topology_partition([2, 2])

    relu, flat = torch.nn.ReLU, torch.nn.Flatten
    alone = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5, padding=2), relu(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(6, 16, 5), relu(), torch.nn.MaxPool2d(2), flat(),
        torch.nn.Linear(400, 120), relu(), torch.nn.Linear(120, 84), relu(),
        torch.nn.Linear(84, 10))
    together = torch.nn.Sequential(
        distdl.nn.DistributedTranspose(P_root, P_conv),
        distdl.nn.DistributedConv2d(P_conv, in_channels=1, out_channels=6, kernel_size=(5, 5),
                                    padding=(2, 2)),
        relu(),
        distdl.nn.DistributedMaxPool2d(P_conv, kernel_size=(2, 2), stride=(2, 2)),
        distdl.nn.DistributedConv2d(P_conv, in_channels=6, out_channels=16, kernel_size=(5, 5),
                                    padding=(0, 0)),
        relu(),
        distdl.nn.DistributedMaxPool2d(P_conv, kernel_size=(2, 2), stride=(2, 2)),
        distdl.nn.Repartition(P_conv, P_flat),
        flat(),
        distdl.nn.Repartition(P_flat_2d, P_fc_in),
        distdl.nn.DistributedLinear(P_fc_in, P_fc_out, P_fc_mtx, 400, 120),
        relu(),
        distdl.nn.DistributedLinear(P_fc_out, P_fc_in, P_fc_mtx, 120, 84),
        relu(),
        distdl.nn.DistributedLinear(P_fc_in, P_fc_out, P_fc_mtx, 84, 10),
        distdl.nn.Repartition(P_fc_out, P_root_2d))

    twins = [each for each in alone if hasattr(each, "weight")]
    convolutions = [each for each in together
                    if isinstance(each, distdl.nn.conv_feature.DistributedFeatureConv2d)]
    linears = [each for each in together if isinstance(each, distdl.nn.linear.DistributedLinear)]
    with torch.no_grad():
        for layer, twin in zip(convolutions, twins):
            if layer.P_wb_cart.active:
                layer.weight.copy_(twin.weight)
                layer.bias.copy_(twin.bias)
        for layer, twin in zip(linears, twins[2:]):
            place = P_fc_mtx.shape, P_fc_mtx.index, twin.weight.shape
            box = assemble_slices(compute_start_index(*place), compute_stop_index(*place))
            layer.sublinear.weight.copy_(twin.weight[box])
            if layer.sublinear.bias is not None:
                layer.sublinear.bias.copy_(twin.bias[box[0]])

    images, labels = torch.randn(8, 1, 28, 28), torch.randint(10, (8,))
    criterion = torch.nn.CrossEntropyLoss()
    losses = []
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3) for net in (alone, together)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = criterion(alone(images), labels)
        output = together(images if P_0.active else zero_volume_tensor(8))
        if P_root_2d.active:
            loss = criterion(output, labels)
        else:
            loss = ZeroVolumeCorrectorFunction.apply(output)
        expected.backward()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        # Sums of some hundred products of order 1, in another order: 1e3 roundings of 1e-16. Adam
        # divides by the root of squared gradients, which has the same relative error.
        if P_0.active:
            assert abs(loss.item() - expected.item()) < 1e-11, (step, loss, expected)
            losses.append(loss.item())
        else:
            assert loss.item() == 0.0
    if P_0.active:
        assert losses[2] < losses[0]
    P_base.print_sequential(f"rank {P_base.rank} is done")
"""

DONE = [f"rank {rank} is done" for rank in range(4)]


def test_lenet_as_alone(playground: Playground) -> None:
    script = playground.write("script.py", LENET)
    assert run_forked(script, num_ranks=4, compat="distdl") == DONE


@pytest.mark.long
def test_lenet_as_alone_under_mpirun(playground: Playground, pytestconfig: pytest.Config) -> None:
    try:
        mpi = find_mpi("openmpi", pytestconfig.rootpath)
    except Unavailable as error:
        if pytestconfig.getoption("--require-mpi", default=False):
            raise
        pytest.skip(str(error))
    path = os.pathsep.join([str(compat_path("distdl")), str(SOURCE), *filter(None, sys.path)])
    done = subprocess.run(
        [
            *[str(mpi.mpirun), "--oversubscribe", "--bind-to", "none", "-n", "4"],
            *[str(mpi.python), playground.write("script.py", LENET)],
        ],
        env=playground.environment(
            {
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_mpi_yield_when_idle": "1",  # there are fewer cores than ranks
                "PYTHONPATH": path,
                **cache_of_torch(playground),
            }
        ),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == DONE


IMPORTS = """
    import horovod
    import distdl
    import distdl.nn.repartition, distdl.nn.broadcast, distdl.nn.sum_reduce
    import distdl.nn.all_sum_reduce, distdl.nn.halo_exchange, distdl.nn.interpolate
    import distdl.nn.upsampling, distdl.nn.batchnorm, distdl.nn.loss, distdl.nn.pooling
    import distdl.nn.conv_channel, distdl.nn.conv_general
    from distdl.nn.mixins.halo_mixin import HaloMixin
    from distdl.nn.mixins.conv_mixin import ConvMixin
    from distdl.nn.mixins.pooling_mixin import PoolingMixin
    from distdl.backends.mpi.buffer import MPIBufferManager, MPIExpandableBuffer
    from distdl.utilities.torch import TensorStructure, distdl_padding_to_torch_padding
    from distdl.nn.transpose import DistributedTranspose
    from mpi4py import MPI
    assert DistributedTranspose is distdl.nn.Repartition is distdl.nn.DistributedTranspose
    try:
        MPI.Win
    except AttributeError as error:
        says_how = "Start the program with mpirun" in str(error)
        print(horovod.__version__, distdl.__version__, says_how)
"""


def test_started_with_several_packages_at_once(playground: Playground) -> None:
    """Two ranks import both, and run the example of DistDL's documentation."""
    example = ALL_SUM_REDUCE.replace("arange(0, 4)", "arange(2)").replace("2, 1, 2", "1, 1, 2")
    script = playground.write("script.py", IMPORTS + example)
    words = ["--compat", "distdl,horovod", "-np", "2", sys.executable]
    result = playground.start(*words, script, env=cache_of_torch(playground)).finish(timeout=110)
    assert lines(result) == [
        "[0] 0 (7, 5) [3.0]",
        "[0] 0.28.1 0.5.0 True",
        "[1] 0.28.1 0.5.0 True",
        "[1] 1 (7, 5) [3.0]",
    ]
    found = """
        from importlib.util import find_spec
        print([find_spec(name) is not None for name in ("horovod", "distdl")])
    """
    words = ["--compat", "distdl", "--compat", "horovod", "-np", "1", sys.executable]
    result = playground.start(*words, playground.write("found.py", found)).finish(timeout=60)
    assert lines(result) == ["[0] [True, True]"]


def test_it_is_found_by_nobody_else(playground: Playground) -> None:
    program = "import importlib.util as i; print(i.find_spec('distdl'))"
    assert lines(playground.run("-np", "1", playground.write("p.py", program))) == ["[0] None"]


def test_paths_for_other_launchers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compat-path", "distdl"]) == 0
    assert capsys.readouterr().out == f"{compat_path('distdl')}\n"
    assert main(["compat-path", "distdl", "mpi4py"]) == 0
    both = f"{compat_path('distdl')}{os.pathsep}{compat_path('mpi4py')}\n"
    assert capsys.readouterr().out == both
    assert main(["compat-path", "distdll"]) == 2
    assert "did you mean distdl?" in capsys.readouterr().err


KEPT = ("PATH", "HOME", "TMPDIR", OPENMPI_DIRECTORY)


def start_alone(
    program: str, *packages: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    path = [str(compat_path(name)) for name in packages]
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            "PYTHONPATH": os.pathsep.join([*path, str(SOURCE)]),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_stand_in_is_not_for_ranks_of_mpi() -> None:
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = start_alone("from mpi4py import MPI", "mpi4py", **ranks)
    assert done.returncode == 1
    assert "Open MPI started this process" in done.stderr
    assert "kadril compat-path distdl" in done.stderr


def test_ranks_that_mpi_knows_nothing_of(pytestconfig: pytest.Config) -> None:
    """Each would be alone in its COMM_WORLD, and train by itself."""
    try:
        find_mpi("openmpi", pytestconfig.rootpath)
    except Unavailable as error:
        pytest.skip(str(error))
    program = """
        from mpi4py import MPI
        from distdl.backends.mpi.partition import MPIPartition
        MPIPartition(MPI.COMM_WORLD)
    """
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    done = start_alone(program, "distdl", **ranks)
    assert done.returncode == 1
    assert "this job has 2 ranks by torchrun, and MPI.COMM_WORLD has 1" in done.stderr


def test_a_program_alone() -> None:
    program = ALL_SUM_REDUCE.replace("arange(0, 4)", "arange(1)").replace("2, 1, 2", "1, 1, 1")
    done = start_alone(program, "distdl", "mpi4py")
    assert (done.returncode, done.stdout) == (0, "0 (7, 5) [1.0]\n"), done.stderr
