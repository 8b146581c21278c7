#include "array.h"

#include <unordered_map>

#include "dlpack.h"

namespace nb = nanobind;

namespace kadril {
namespace {

// Python objects that live as long as the interpreter; plain pointers, so that nothing runs after
// its end.
struct TensorFacts {
  PyTypeObject* tensor_class = nullptr;
  std::unordered_map<PyObject*, DType> dtypes;
  const dlpack::ExchangeApi* exchange = nullptr;  // where the class offers one
  PyObject *data_ptr, *dtype, *shape, *stride, *is_cpu, *is_contiguous, *is_neg;
};

TensorFacts facts;

nb::object ask(nb::handle tensor, PyObject* attribute) {
  return nb::steal(PyObject_GetAttr(tensor.ptr(), attribute));
}

nb::object call_method(nb::handle tensor, PyObject* method) {
  return nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), method));
}

bool is_negated(nb::handle tensor) { return call_method(tensor, facts.is_neg).ptr() != Py_False; }

const dlpack::ExchangeApi* find_exchange(nb::handle tensor_class) {
  if (!nb::hasattr(tensor_class, "__dlpack_c_exchange_api__")) return nullptr;
  nb::object capsule = tensor_class.attr("__dlpack_c_exchange_api__");
  auto exchange = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (!exchange) PyErr_Clear();
  const bool fits =
      exchange && exchange->major == dlpack::supported_major && exchange->look_at_object;
  return fits ? exchange : nullptr;
}

// By kind and size; complex tensors may be conjugated lazily, which is for the
// caller's closer look.
bool find_dtype(const dlpack::Tensor& tensor, DType& dtype) {
  const auto choose = [&](DType of8, DType of16, DType of32, DType of64) {
    dtype = tensor.bits == 8 ? of8 : tensor.bits == 16 ? of16 : tensor.bits == 32 ? of32 : of64;
    return tensor.bits == 8 * size_of(dtype);
  };
  if (tensor.lanes != 1) return false;
  switch (tensor.kind) {
    case dlpack::integer:
      return choose(DType::int8, DType::int16, DType::int32, DType::int64);
    case dlpack::unsigned_integer:
      return choose(DType::uint8, DType::uint16, DType::uint32, DType::uint64);
    case dlpack::real:
      return tensor.bits >= 16 &&
             choose(DType::float16, DType::float16, DType::float32, DType::float64);
    case dlpack::brain:
      dtype = DType::bfloat16;
      return tensor.bits == 16;
    case dlpack::boolean:
      dtype = DType::boolean;
      return tensor.bits == 8;
    default:
      return false;
  }
}

bool find_complex(const dlpack::Tensor& tensor, DType& dtype) {
  if (tensor.kind != dlpack::complex || tensor.lanes != 1) return false;
  dtype = tensor.bits == 64 ? DType::complex64 : DType::complex128;
  return tensor.bits == 64 || tensor.bits == 128;
}

bool set_contiguous_shape(const dlpack::Tensor& tensor, Call& call) {
  if (tensor.num_dims > max_dims) return false;
  uint64_t dims[max_dims];
  call.count = 1;
  for (int i = tensor.num_dims - 1; i >= 0; --i) {
    dims[i] = static_cast<uint64_t>(tensor.shape[i]);
    // Asked of dimensions of size 1 too: an odd stride there may be the trace of a lazy negation.
    if (tensor.strides && tensor.strides[i] != static_cast<int64_t>(call.count)) return false;
    call.count *= dims[i];
  }
  call.set_shape({dims, static_cast<size_t>(tensor.num_dims)});
  return true;
}

void* look_through_exchange(nb::handle tensor, Call& call) {
  dlpack::Tensor seen;
  if (facts.exchange->look_at_object(tensor.ptr(), &seen) != 0) return nullptr;
  if (seen.device != dlpack::cpu || !find_dtype(seen, call.dtype) ||
      !set_contiguous_shape(seen, call)) {
    return nullptr;
  }
  // The imaginary part of a conjugate is negated lazily. It has stride 2, but a
  // scalar has no strides.
  if (seen.num_dims == 0 && is_negated(tensor)) return nullptr;
  return static_cast<std::byte*>(seen.data) + seen.byte_offset;
}

bool set_shape(nb::handle shape, Call& call) {
  const Py_ssize_t num_dims = PyTuple_Check(shape.ptr()) ? PyTuple_GET_SIZE(shape.ptr()) : -1;
  if (num_dims < 0 || num_dims > max_dims) return false;
  uint64_t dims[max_dims];
  call.count = 1;
  for (Py_ssize_t i = 0; i < num_dims; ++i) {
    dims[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(shape.ptr(), i));
    call.count *= dims[i];
  }
  call.set_shape({dims, static_cast<size_t>(num_dims)});
  return !PyErr_Occurred();
}

void* look_through_methods(nb::handle tensor, Call& call) {
  const auto dtype = facts.dtypes.find(ask(tensor, facts.dtype).ptr());
  if (dtype == facts.dtypes.end() || dtype->second >= DType::complex64 ||
      ask(tensor, facts.is_cpu).ptr() != Py_True ||
      call_method(tensor, facts.is_contiguous).ptr() != Py_True || is_negated(tensor) ||
      !set_shape(ask(tensor, facts.shape), call)) {
    return nullptr;
  }
  call.dtype = dtype->second;
  const nb::object address = call_method(tensor, facts.data_ptr);
  return address.is_valid() ? PyLong_AsVoidPtr(address.ptr()) : nullptr;
}

bool array_through_exchange(nb::handle tensor, Array& array) {
  dlpack::Tensor seen;
  if (facts.exchange->look_at_object(tensor.ptr(), &seen) != 0) throw nb::python_error();
  if (seen.device != dlpack::cpu ||
      !(find_dtype(seen, array.dtype) || find_complex(seen, array.dtype))) {
    return false;
  }
  array.memory = static_cast<std::byte*>(seen.data) + seen.byte_offset;
  array.shape.assign(seen.shape, seen.shape + seen.num_dims);
  array.strides.resize(array.shape.size());
  int64_t count = 1;
  for (size_t i = array.shape.size(); i-- > 0; count *= array.shape[i]) {
    array.strides[i] = seen.strides ? seen.strides[i] : count;
  }
  return true;
}

std::vector<int64_t> numbers(nb::handle tuple) {
  std::vector<int64_t> found;
  for (nb::handle number : nb::borrow<nb::tuple>(tuple)) found.push_back(nb::cast<int64_t>(number));
  return found;
}

bool array_through_methods(nb::handle tensor, Array& array) {
  const auto dtype = facts.dtypes.find(ask(tensor, facts.dtype).ptr());
  if (dtype == facts.dtypes.end() || ask(tensor, facts.is_cpu).ptr() != Py_True) return false;
  array.dtype = dtype->second;
  array.shape = numbers(ask(tensor, facts.shape));
  array.strides = numbers(call_method(tensor, facts.stride));
  const nb::object address = call_method(tensor, facts.data_ptr);
  if (address.is_valid()) {
    array.memory = static_cast<std::byte*>(PyLong_AsVoidPtr(address.ptr()));
  }
  if (PyErr_Occurred()) throw nb::python_error();
  return true;
}

}  // namespace

void register_tensor(nb::type_object tensor_class, nb::dict dtype_codes) {
  facts.data_ptr = PyUnicode_InternFromString("data_ptr");
  facts.dtype = PyUnicode_InternFromString("dtype");
  facts.shape = PyUnicode_InternFromString("shape");
  facts.stride = PyUnicode_InternFromString("stride");
  facts.is_cpu = PyUnicode_InternFromString("is_cpu");
  facts.is_contiguous = PyUnicode_InternFromString("is_contiguous");
  facts.is_neg = PyUnicode_InternFromString("is_neg");
  for (auto [dtype, code] : dtype_codes) {
    facts.dtypes[dtype.inc_ref().ptr()] = static_cast<DType>(nb::cast<int>(code));
  }
  facts.exchange = find_exchange(tensor_class);
  facts.tensor_class = reinterpret_cast<PyTypeObject*>(tensor_class.inc_ref().ptr());
}

void* look(nb::handle tensor, Call& call) {
  // The class itself, not one derived from it: such a tensor may be anything but memory.
  if (Py_TYPE(tensor.ptr()) != facts.tensor_class) return nullptr;
  void* memory =
      facts.exchange ? look_through_exchange(tensor, call) : look_through_methods(tensor, call);
  // An exception of the tensor's own is found again, and raised, by the caller's closer look.
  if (PyErr_Occurred()) PyErr_Clear();
  return memory;
}

Array array_of(nb::handle tensor) {
  Array array;
  const bool is_seen = PyObject_TypeCheck(tensor.ptr(), facts.tensor_class) &&
                       (facts.exchange ? array_through_exchange(tensor, array)
                                       : array_through_methods(tensor, array));
  if (!is_seen) throw nb::type_error("expected a tensor in CPU memory, of a dtype that is moved");
  return array;
}

}  // namespace kadril
