#include "recording.h"

#include <nanobind/stl/string.h>

#include <string>

#include "recorder.h"

namespace nb = nanobind;

namespace kadril {
namespace {

// An empty text, or why it cannot be opened.
std::string open_recorder(int descriptor, int rank, int size, int stack_signal) {
  const Error error = Recorder::open(descriptor, rank, size, stack_signal);
  return error ? error->detail : std::string();
}

// For calls of transports that are written in Python, by the name of their collective.
uint64_t begin_record(const std::string& operation, const std::string& name, uint64_t group,
                      uint32_t sequence, uint32_t num_members) {
  if (!Recorder::is_open()) return 0;
  Call call;
  call.set_name(name);
  for (int kind = 0; kind < num_kinds; ++kind) {
    if (operation == name_of(static_cast<Kind>(kind))) call.kind = static_cast<Kind>(kind);
  }
  return Recorder::begin(call, group, sequence, num_members);
}

}  // namespace

void bind_recorder(nb::module_& module) {
  module.def("open_recorder", &open_recorder);
  module.def("go_on_recording", &Recorder::go_on);
  module.def("begin_record", &begin_record);
  module.def("end_record", [](uint64_t number) { Recorder::end(number); });
}

}  // namespace kadril
