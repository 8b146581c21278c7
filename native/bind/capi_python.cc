#include "capi_python.h"

#include <nanobind/nanobind.h>

#include <cstdlib>
#include <string>

#include "capi_state.h"

namespace nb = nanobind;

namespace kadril {
namespace {

// The text of the exception that is set.
std::string take_exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* text = value ? PyObject_Str(value) : nullptr;
  const char* words = text ? PyUnicode_AsUTF8(text) : nullptr;
  std::string result = words ? words : "an exception without words";
  Py_XDECREF(text);
  Py_XDECREF(trace);
  Py_XDECREF(value);
  Py_XDECREF(type);
  PyErr_Clear();
  return result;
}

// Import this very library as a Python module. Until then nanobind must not be touched.
bool load_module() {
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* module = PyImport_ImportModule("kadril._native");
  if (!module) {
    fail_with(KADRIL_FAILED, take_exception() +
                                 "; start the program with `kadril run`, or set KADRIL_PYTHON to"
                                 " the Python that kadril is installed for");
  }
  Py_XDECREF(module);
  PyGILState_Release(gil);
  return module != nullptr;
}

bool start_python() {
  if (Py_IsInitialized()) return true;
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0;
  config.parse_argv = 0;
  // The launcher's own Python, so that its environment is found.
  if (const char* python = std::getenv("KADRIL_PYTHON")) {
    PyConfig_SetBytesString(&config, &config.program_name, python);
  }
  const PyStatus status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status)) {
    fail_with(KADRIL_FAILED, status.err_msg ? status.err_msg : "Python could not be started");
    return false;
  }
  PyEval_SaveThread();
  return true;
}

nb::object to_python(const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::number:
      return nb::int_(argument.number);
    case Argument::Kind::text:
      return nb::str(argument.text.c_str());
    case Argument::Kind::numbers:
      break;
  }
  nb::list list;
  for (const int number : argument.numbers) list.append(number);
  return list;
}

// Python decides which kind an exception is, and what it says.
int fail_by(nb::handle module, nb::handle exception) {
  nb::tuple found = nb::cast<nb::tuple>(module.attr("describe_failure")(exception));
  return fail_with(static_cast<kadril_status>(nb::cast<int>(found[0])),
                   nb::str(nb::handle(found[1])).c_str());
}

int call(const char* function, const std::vector<Argument>& arguments) {
  nb::object module = nb::module_::import_("kadril.capi");
  nb::list list;
  for (const Argument& argument : arguments) list.append(to_python(argument));
  try {
    return nb::cast<int>(module.attr(function)(*nb::tuple(list)));
  } catch (nb::python_error& error) {
    return fail_by(module, error.value());
  }
}

}  // namespace

int ask_python(const char* function, const std::vector<Argument>& arguments) {
  if (!start_python() || !load_module()) return -1;
  nb::gil_scoped_acquire gil;
  try {
    return call(function, arguments);
  } catch (const std::exception& error) {
    return fail_with(KADRIL_FAILED, error.what());
  }
}

}  // namespace kadril
