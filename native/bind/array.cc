#include "array.h"

#include <unordered_map>

namespace nb = nanobind;

namespace kadril {
namespace {

// Python objects that live as long as the interpreter; plain pointers, so that nothing runs after
// its end.
struct TensorFacts {
  PyTypeObject* tensor_class = nullptr;
  std::unordered_map<PyObject*, DType> dtypes;
  PyObject *data_ptr, *dtype, *shape, *is_cpu, *is_contiguous, *is_neg;
};

TensorFacts facts;

nb::object ask(nb::handle tensor, PyObject* attribute) {
  return nb::steal(PyObject_GetAttr(tensor.ptr(), attribute));
}

nb::object call_method(nb::handle tensor, PyObject* method) {
  return nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), method));
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

}  // namespace

void register_tensor(nb::type_object tensor_class, nb::dict dtype_codes) {
  facts.data_ptr = PyUnicode_InternFromString("data_ptr");
  facts.dtype = PyUnicode_InternFromString("dtype");
  facts.shape = PyUnicode_InternFromString("shape");
  facts.is_cpu = PyUnicode_InternFromString("is_cpu");
  facts.is_contiguous = PyUnicode_InternFromString("is_contiguous");
  facts.is_neg = PyUnicode_InternFromString("is_neg");
  for (auto [dtype, code] : dtype_codes) {
    facts.dtypes[dtype.inc_ref().ptr()] = static_cast<DType>(nb::cast<int>(code));
  }
  facts.tensor_class = reinterpret_cast<PyTypeObject*>(tensor_class.inc_ref().ptr());
}

void* look(nb::handle tensor, Call& call) {
  if (!facts.tensor_class || !PyObject_TypeCheck(tensor.ptr(), facts.tensor_class)) return nullptr;
  const auto dtype = facts.dtypes.find(ask(tensor, facts.dtype).ptr());
  void* memory = nullptr;
  // Complex tensors may be conjugated lazily, which is for the closer look.
  if (dtype != facts.dtypes.end() && dtype->second < DType::complex64 &&
      ask(tensor, facts.is_cpu).ptr() == Py_True &&
      call_method(tensor, facts.is_contiguous).ptr() == Py_True &&
      call_method(tensor, facts.is_neg).ptr() == Py_False &&
      set_shape(ask(tensor, facts.shape), call)) {
    call.dtype = dtype->second;
    const nb::object address = call_method(tensor, facts.data_ptr);
    if (address.is_valid()) memory = PyLong_AsVoidPtr(address.ptr());
  }
  // An exception of the tensor's own is found again, and raised, by the caller's slower look.
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return nullptr;
  }
  return memory;
}

}  // namespace kadril
