"""The package named `distdl`: shapes, indices, halos, buffers; and where packages are found.

Imported by its long name here, so that `import distdl` stays what it is in this process.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from kadril.compat import compat_names, compat_path, job_variables
from kadril.compat.distdl_path.distdl import nn as dnn
from kadril.compat.distdl_path.distdl.backends.mpi.buffer import (
    MPIBufferManager,
    MPIExpandableBuffer,
)
from kadril.compat.distdl_path.distdl.nn.adapter import per_dim
from kadril.compat.distdl_path.distdl.nn.mixins import ConvMixin, HaloMixin
from kadril.compat.distdl_path.distdl.utilities import dtype, slicing, tensor_decomposition
from kadril.compat.distdl_path.distdl.utilities.index_tricks import (
    cartesian_index_c,
    cartesian_index_f,
)
from kadril.compat.distdl_path.distdl.utilities.torch import (
    TensorStructure,
    distdl_padding_to_torch_padding,
    zero_volume_tensor,
)
from kadril.errors import ConfigError
from kadril.launch.options import RunOptions

# Where they are found


def test_names_of_packages() -> None:
    assert compat_names(None) == ()
    assert compat_names("distdl, horovod") == ("distdl", "horovod")
    assert compat_names(["horovod", "distdl,horovod"]) == ("horovod", "distdl")
    with pytest.raises(ConfigError, match="did you mean distdl"):
        compat_names("horovod,distdel")
    with pytest.raises(ConfigError, match="got ''"):
        RunOptions(command=("x",), num_ranks=1, compat="distdl,")


def test_the_first_package_comes_first_and_brings_its_companions() -> None:
    paths = [str(compat_path(name)) for name in ("horovod", "distdl", "mpi4py")]
    added = job_variables(["horovod", "distdl"], {"PYTHONPATH": f"/a{os.pathsep}{paths[1]}"})
    assert added["PYTHONPATH"].split(os.pathsep) == [*paths, "/a"]
    assert added["HOROVOD_CONTROLLER"] == "gloo"
    assert job_variables([], {"PYTHONPATH": "/a"}) == {}


# Shapes and indices


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("num_workers", range(1, 5))
def test_blocks_follow_one_another(size: int, num_workers: int) -> None:
    blocks = [
        (
            slicing.compute_start_index(num_workers, worker, size)[0],
            slicing.compute_stop_index(num_workers, worker, size)[0],
            slicing.compute_subshape(num_workers, worker, size)[0],
        )
        for worker in range(num_workers)
    ]
    assert [stop - start for start, stop, _ in blocks] == [length for *_, length in blocks]
    bounds = [0, *(stop for _, stop, _ in blocks)]
    assert [start for start, *_ in blocks] == bounds[:-1]
    assert bounds[-1] == size
    assert max(length for *_, length in blocks) - min(length for *_, length in blocks) <= 1


def test_boxes() -> None:
    assert slicing.assemble_slices([1, 2], [3, 4]) == (slice(1, 3), slice(2, 4))
    both = slicing.compute_partition_intersection([2, 1], [0, 0], [1, 3], [0, 2], [5, 7])
    assert both == (slice(0, 3), slice(5, 7))
    assert slicing.compute_partition_intersection([2], [0], [2], [1], [4]) is None
    assert slicing.compute_nd_slice_volume((slice(1, 3), slice(2, 7))) == 10
    assert slicing.compute_nd_slice_shape((slice(1, 3), slice(2, 7))) == (2, 5)
    assert list(slicing.range_index([1, 2])) == [(0, 0), (0, 1)]
    assert list(slicing.filtered_range_index((2, 2), (1, None))) == [(1, 0), (1, 1)]
    assert slicing.assemble_index_filter((4, 3, 2), (1,)) == (None, 3, None)
    assert slicing.assemble_index_filter((4, 3, 2), (1,), invert=True) == (4, None, 2)
    assert slicing.worker_layout(np.array([2, 3])).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert cartesian_index_c([2, 3], [1, 2]) == 5
    assert cartesian_index_f([2, 3], [1, 2]) == 5
    assert cartesian_index_f([2, 3], [1, 0]) == 1


def test_decompositions() -> None:
    structure = TensorStructure()
    structure.shape = [5, 4]
    shapes = tensor_decomposition.compute_subtensor_shapes_balanced(structure, [2, 3])
    assert shapes[:, 0].tolist() == [[3, 2], [2, 2]]
    starts = tensor_decomposition.compute_subtensor_start_indices(shapes)
    stops = tensor_decomposition.compute_subtensor_stop_indices(shapes)
    assert starts[1, 2].tolist() == [3, 3]
    assert stops[1, 2].tolist() == [5, 4]
    cut = tensor_decomposition.compute_subtensor_intersection_slice
    assert cut([2, 0], [6, 4], [4, 1], [9, 2]) == (slice(2, 4), slice(1, 2))
    assert cut([2], [6], [6], [9]) is None
    with pytest.raises(ValueError, match="lists"):
        cut([[2]], [[6]], [[6]], [[9]])


def test_programs_take_numpy_along_with_what_they_import() -> None:
    for module in (slicing, tensor_decomposition):
        scope: dict[str, Any] = {}
        exec(f"from {module.__name__} import *", scope)  # noqa: S102
        assert scope["np"] is np
        assert "assemble_slices" in scope


def test_structures_and_tensors_without_elements() -> None:
    assert zero_volume_tensor().shape == (0,)
    assert zero_volume_tensor(3, dtype=torch.int8).shape == (3, 0)
    assert zero_volume_tensor(requires_grad=True).requires_grad
    one, other = TensorStructure(torch.ones(2, 3)), TensorStructure(torch.zeros(2, 3))
    assert one == other
    other.shape = np.array([2, 4])
    assert one != other
    assert TensorStructure() == TensorStructure()
    assert distdl_padding_to_torch_padding(np.array([[0, 1], [2, 3]])) == (2, 3, 0, 1)


def test_dtypes() -> None:
    for each, scalar in dtype.torch_to_numpy_dtype_dict.items():
        assert torch.from_numpy(np.zeros(1, dtype=scalar)).dtype == each
        assert dtype.numpy_to_torch_dtype_dict[np.dtype(scalar)] == each
        assert dtype.intID_to_torch_dtype_dict[dtype.torch_to_intID_dtype_dict[each]] == each


# Halos


class Pool(HaloMixin):
    """A layer of one's own, with windows of one's own."""

    def _compute_min_input_range(self, idx: Any, *window: Any) -> Any:
        return window[1] * idx

    def _compute_max_input_range(self, idx: Any, *window: Any) -> Any:
        return window[1] * idx + window[0] - 1


def test_halos_by_hand() -> None:
    """10 elements over 4 workers, in pairs: blocks of 3, 3, 2, 2 give 2, 1, 1, 1 outputs.

    0 1 2 | 3 4 5 | 6 7 | 8 9        worker 0 needs element 3, and worker 1 does not
    """
    expected = [
        ([0, 1], [0, 0], [0, 4]),
        ([0, 0], [1, 0], [1, 3]),
        ([0, 0], [0, 0], [0, 2]),
        ([0, 0], [0, 0], [0, 2]),
    ]
    for worker, (halo, send, needed) in enumerate(expected):
        found = Pool()._compute_exchange_info(
            np.array([1, 1, 10]), [2], [2], [0], [1], True, [1, 1, 4], [0, 0, worker]
        )
        assert [each[2].tolist() for each in found] == [halo, halo, send, needed]
        assert all(each[:2].tolist() == [[0, 0]] * 2 for each in found[:3])
    assert Pool()._compute_exchange_info([4], [1], [1], [0], [1], False, [2], None) == (None,) * 4


class Convolution(HaloMixin, ConvMixin):
    """Windows of a convolution."""


@pytest.mark.parametrize("blocks", [[4, 4, 3], [5, 2, 4]])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (2, 2, 1), (3, 1, 2)])
def test_halos_hold_what_outputs_are_made_of(
    blocks: list[int], kernel: int, stride: int, dilation: int
) -> None:
    shapes = np.array(blocks).reshape(3, 1)
    num_outputs = (11 - dilation * (kernel - 1) - 1) // stride + 1
    starts = np.cumsum([0, *blocks])
    for worker in range(3):
        halo, receive, _, needed = Convolution()._compute_exchange_info(
            [11], kernel, stride, 0, dilation, True, [3], [worker], shapes
        )
        first = slicing.compute_start_index(3, worker, num_outputs)[0]
        last = slicing.compute_stop_index(3, worker, num_outputs)[0] - 1
        begin = starts[worker] - halo[0, 0] + needed[0, 0]
        end = starts[worker] - halo[0, 0] + needed[0, 1]
        assert begin == first * stride
        assert end > last * stride + dilation * (kernel - 1), "a right halo may be longer"
        assert receive.tolist() == halo.tolist()


def test_settings_are_whole_numbers() -> None:
    """A stride of 1.5 was taken for 1."""
    assert per_dim(np.array([2, 3]), 2, "stride") == (2, 3)
    assert per_dim(2.0, 2, "stride") == (2, 2)
    for value in (1.5, [1, 1.5]):
        with pytest.raises(ValueError, match=r"stride needs whole numbers, got .*1\.5"):
            per_dim(value, 2, "stride")


# Buffers, and layers of one's own


def test_buffers_grow_and_keep_what_is_in_them() -> None:
    buffer = MPIExpandableBuffer(np.float32)
    assert (len(buffer.raw_buffer), buffer.raw_buffer.dtype) == (0, np.float32)
    buffer.expand(5)
    view = buffer.get_view((2, 2))
    view[:] = 7
    memory = buffer.raw_buffer
    assert buffer.get_view((5,)).tolist() == [7, 7, 7, 7, 0]
    assert buffer.raw_buffer is memory
    buffer.allocate_view((3, 3))
    assert buffer.capacity == 9
    assert buffer.get_view((4,)).tolist() == [7] * 4


def test_a_manager_of_buffers() -> None:
    manager = MPIBufferManager()
    assert len(manager.buffers_map) == 0
    buffers = manager.request_buffers(3, np.float32)
    assert manager.request_buffers(2, np.float32) == buffers[:2]
    manager.request_buffers(1, np.int32)
    sizes = {key: len(value) for key, value in manager.buffers_map.items()}
    assert sizes == {np.float32: 3, np.int32: 1}


def test_layers_of_ones_own_are_set_up_when_their_input_changes() -> None:
    class Layer(dnn.Module):
        """Remembers what happened."""

        def __init__(self) -> None:
            super().__init__()
            self.log: list[str] = []
            self.structure = TensorStructure()

        def _distdl_module_setup(self, args: tuple[Any, ...]) -> None:
            super()._distdl_module_setup(args)
            self.structure = TensorStructure(args[0])
            self.log.append("setup")

        def _distdl_module_teardown(self, args: tuple[Any, ...]) -> None:
            super()._distdl_module_teardown(args)
            self.log.append("teardown")

        def _distdl_input_changed(self, args: tuple[Any, ...]) -> bool:
            return self.structure != TensorStructure(args[0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    layer = Layer()
    for size in (2, 2, 3):
        layer(torch.ones(size))
    assert layer.log == ["setup", "teardown", "setup"]


def test_the_old_name_of_repartition_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"old name of distdl\.nn\.Repartition"):
        assert dnn.DistributedTranspose is dnn.Repartition
    with pytest.raises(AttributeError, match="no attribute 'DistributedDance'"):
        dnn.DistributedDance  # noqa: B018


def test_a_part_is_interpolated_as_the_whole() -> None:
    x = torch.rand(1, 2, 7, 5, dtype=torch.float64)
    whole = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
    part = dnn.Interpolate(
        *([0, 0, 2, 0], [1, 2, 7, 5], [1, 2, 7, 5]),
        *([0, 0, 6, 0], [1, 2, 14, 10], [1, 2, 14, 10]),
        scale_factor=2.0,
    )
    # Products of two weights, in another order.
    torch.testing.assert_close(part(x[:, :, 2:]), whole[:, :, 6:], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_interpolation_of_a_part_clamps_to_what_it_has(
    mode: str, align_corners: bool, num_dims: int
) -> None:
    """Outputs beyond the window of the input raised IndexError; its border stands for them."""
    sizes, starts, stops = [7, 13, 17][:num_dims], [2, 4, 9][:num_dims], [7, 10, 12][:num_dims]
    out_sizes = [11, 20, 24][:num_dims]
    layer = dnn.Interpolate(
        [0, 0, *starts],
        [1, 2, *stops],
        [1, 2, *sizes],
        [0] * (num_dims + 2),
        [1, 2, *out_sizes],
        [1, 2, *out_sizes],
        mode=mode,
        align_corners=align_corners and mode == "linear",
    )
    x = torch.ones(
        [1, 2, *(b - a for a, b in zip(starts, stops, strict=True))], dtype=torch.float64
    )
    x.requires_grad_()
    y = layer(x)
    assert torch.equal(y, torch.ones([1, 2, *out_sizes], dtype=torch.float64))
    y.sum().backward()
    assert x.grad is not None
    # The adjoint of interpolating: each output hands on a share of 1 in all; a sum of at most
    # 2 * 11 * 20 * 24 numbers rounds by less than 2**14 eps of its size.
    assert abs(float(x.grad.sum()) - y.numel()) <= 2.0 ** (14 - 53) * y.numel()
