// Every function of Horovod's C++ layer, through an adapter; run on two ranks. Results are exact.
#include "adapter.h"

#include <string>
#include <thread>

using namespace adapter;

namespace {

using Doubles = std::vector<double>;

const int cpu = CPU_DEVICE_ID;
int rank = -1;

bool mentions(const Status& status, const char* words) {
  return status.reason().find(words) != std::string::npos;
}

std::shared_ptr<Array> empty(DataType dtype = HOROVOD_FLOAT64) {
  return Array::of(dtype, {0}, Doubles());
}

std::shared_ptr<OpContext> context_for(std::vector<std::shared_ptr<Array>> outputs) {
  return std::make_shared<ArrayOpContext>(std::move(outputs));
}

void reduce() {
  auto input = Array::of({rank + 1.0, 10.0 * rank}), output = Array::of({0, 0});
  Outcome out_of_place, in_place;
  CHECK_OK(EnqueueTensorAllreduce(context_for({output}), tensor_of(input), tensor_of(output),
                                  ReadyEventList(), "sum", cpu, out_of_place.callback()));
  CHECK_OK(out_of_place.wait());
  CHECK(output->values() == Doubles({3, 10}) && input->values()[0] == rank + 1);
  CHECK_OK(EnqueueTensorAllreduce(context_for({input}), tensor_of(input), tensor_of(input),
                                  ReadyEventList(), "average", cpu, in_place.callback(),
                                  ReduceOp::AVERAGE, 2.0, 4.0));
  CHECK_OK(in_place.wait());
  CHECK(input->values() == Doubles({12, 40}));
}

void reduce_a_group() {
  auto doubles = Array::of({rank + 1.0});
  auto integers = Array::of<int32_t>(HOROVOD_INT32, {3}, {rank, 2, 3});
  std::vector<std::shared_ptr<OpContext>> contexts = {context_for({}), context_for({})};
  std::vector<std::shared_ptr<Tensor>> tensors = {tensor_of(doubles), tensor_of(integers)};
  std::vector<ReadyEventList> events(2);
  std::vector<std::string> names = {"first", "second"};
  Outcome first, second;
  std::vector<StatusCallback> callbacks = {first.callback(), second.callback()};
  CHECK_OK(EnqueueTensorAllreduces(contexts, tensors, tensors, events, names, cpu, callbacks));
  CHECK_OK(first.wait());
  CHECK_OK(second.wait());
  CHECK(doubles->values() == Doubles({3}));
  CHECK(integers->values<int32_t>() == std::vector<int32_t>({1, 4, 6}));
  names.pop_back();
  CHECK(EnqueueTensorAllreduces(contexts, tensors, tensors, events, names, cpu, callbacks).type() ==
        INVALID_ARGUMENT);
}

void gather() {
  // Rank 0 gives one row, rank 1 two.
  auto output = empty();
  const Doubles rows(static_cast<size_t>(2 * (rank + 1)), rank);
  Outcome done;
  CHECK_OK(EnqueueTensorAllgather(context_for({output}),
                                  tensor_of(Array::of(HOROVOD_FLOAT64, {rank + 1, 2}, rows)),
                                  ReadyEventList(), "rows", cpu, done.callback()));
  CHECK_OK(done.wait());
  CHECK(output->shape == std::vector<int64_t>({3, 2}));
  CHECK(output->values() == Doubles({0, 0, 1, 1, 1, 1}));
}

void broadcast() {
  auto array = Array::of({rank * 7.0});
  const auto output = rank == 1 ? nullptr : tensor_of(array);  // the root needs none
  Outcome done, refused;
  CHECK_OK(EnqueueTensorBroadcast(context_for({}), tensor_of(array), output, 1, ReadyEventList(),
                                  "word", cpu, done.callback()));
  CHECK_OK(done.wait());
  CHECK(array->values() == Doubles({7}));
  const Status status =
      EnqueueTensorBroadcast(context_for({}), tensor_of(array), tensor_of(array), 9,
                             ReadyEventList(), "nowhere", cpu, refused.callback());
  CHECK(status.type() == INVALID_ARGUMENT && mentions(status, "root rank 9"));
}

void exchange() {
  // Rank 0 sends 1 row to itself and 2 to rank 1; rank 1 sends 3 and 0.
  const std::vector<int32_t> rows =
      rank == 0 ? std::vector<int32_t>{1, 2} : std::vector<int32_t>{3, 0};
  auto output = empty(), received = empty(HOROVOD_INT32);
  auto input = Array::of({10.0 * rank, 10.0 * rank + 1, 10.0 * rank + 2});
  Outcome done, even, refused;
  CHECK_OK(EnqueueTensorAlltoall(context_for({output, received}), tensor_of(input),
                                 tensor_of(Array::of(HOROVOD_INT32, {2}, rows)), ReadyEventList(),
                                 "uneven", cpu, done.callback()));
  CHECK_OK(done.wait());
  CHECK(output->values() == (rank == 0 ? Doubles({0, 10, 11, 12}) : Doubles({1, 2})));
  CHECK(received->values<int32_t>() ==
        (rank == 0 ? std::vector<int32_t>({1, 3}) : std::vector<int32_t>({2, 0})));
  CHECK_OK(EnqueueTensorAlltoall(context_for({output, received}),
                                 tensor_of(Array::of({rank + 0.0, rank + 10.0})), nullptr,
                                 ReadyEventList(), "even", cpu, even.callback()));
  CHECK_OK(even.wait());
  CHECK(output->values() == (rank == 0 ? Doubles({0, 1}) : Doubles({10, 11})));
  const Status status =
      EnqueueTensorAlltoall(context_for({output, received}), tensor_of(input), nullptr,
                            ReadyEventList(), "odd", cpu, refused.callback());
  CHECK(status.type() == INVALID_ARGUMENT && mentions(status, "evenly"));
}

void reduce_and_scatter() {
  // Three rows for two ranks: the first gets two.
  auto output = empty();
  Outcome done, refused;
  CHECK_OK(EnqueueTensorReducescatter(context_for({output}),
                                      tensor_of(Array::of({1.0, 2.0 + rank, 3.0})),
                                      ReadyEventList(), "parts", cpu, done.callback()));
  CHECK_OK(done.wait());
  CHECK(output->values() == (rank == 0 ? Doubles({2, 5}) : Doubles({6})));
  CHECK(EnqueueTensorReducescatter(context_for({output}), tensor_of(Array::of({1.0, 2.0})),
                                   ReadyEventList(), "max", cpu, refused.callback(), ReduceOp::MAX)
            .type() == INVALID_ARGUMENT);
}

void meet() {
  for (int i = 0; i < 3; ++i) {
    Outcome done;
    CHECK_OK(EnqueueBarrier(done.callback()));
    CHECK_OK(done.wait());
  }
}

// Two threads of a rank once asked for barriers of the same number, and one was refused.
void meet_from_two_threads() {
  std::thread other(meet);
  meet();
  other.join();
}

// Rank 1 reduces once more than rank 0, and meets no one less; afterwards barriers agree again.
void join() {
  auto last = Array::of<int32_t>(HOROVOD_INT32, {}, {-1});
  if (rank == 1) {
    Outcome reduced, met;
    auto value = Array::of({5.0});
    CHECK_OK(EnqueueTensorAllreduce(context_for({}), tensor_of(value), tensor_of(value),
                                    ReadyEventList(), "alone", cpu, reduced.callback()));
    CHECK_OK(reduced.wait());
    CHECK(value->values() == Doubles({5}));
    CHECK_OK(EnqueueBarrier(met.callback()));
    CHECK_OK(met.wait());
  }
  Outcome joined;
  CHECK_OK(EnqueueJoin(context_for({}), tensor_of(last), ReadyEventList(), "join", cpu,
                       joined.callback()));
  CHECK_OK(joined.wait());
  CHECK(last->values<int32_t>()[0] == 1);
  meet();
}

void disagree() {
  Outcome refused;
  auto array = Array::of(HOROVOD_FLOAT64, {rank + 1}, Doubles(static_cast<size_t>(rank + 1)));
  CHECK_OK(EnqueueTensorAllreduce(context_for({}), tensor_of(array), tensor_of(array),
                                  ReadyEventList(), "disputed", cpu, refused.callback()));
  const Status status = refused.wait();
  CHECK(status.type() == PRECONDITION_ERROR);
  CHECK(mentions(status, "rank 0: ") && mentions(status, "rank 1: "));
  reduce();  // the next ones work
}

// Only rank 0 asks at first, so that its operation is under way for certain.
void use_a_name_twice() {
  Outcome first, second;
  auto array = Array::of({1.0}), other = Array::of({1.0});
  if (rank == 1) meet();
  CHECK_OK(EnqueueTensorAllreduce(context_for({}), tensor_of(array), tensor_of(array),
                                  ReadyEventList(), "twice", cpu, first.callback()));
  if (rank == 0) {
    const Status status =
        EnqueueTensorAllreduce(context_for({}), tensor_of(other), tensor_of(other),
                               ReadyEventList(), "twice", cpu, second.callback());
    CHECK(status.type() == INVALID_ARGUMENT && mentions(status, "the name is in use"));
    meet();
  }
  CHECK_OK(first.wait());
  CHECK(first.num_calls() == 1 && second.num_calls() == 0 && array->values() == Doubles({2}));
}

void misuse() {
  Outcome never;
  auto array = Array::of({1.0, 2.0}), shorter = Array::of({1.0});
  auto start = [&](std::shared_ptr<Tensor> input, std::shared_ptr<Tensor> output, int device) {
    return EnqueueTensorAllreduce(context_for({}), input, output, ReadyEventList(), "misuse",
                                  device, never.callback());
  };
  CHECK(start(tensor_of(array), tensor_of(shorter), cpu).type() == INVALID_ARGUMENT);
  CHECK(start(tensor_of(array), nullptr, cpu).type() == INVALID_ARGUMENT);
  CHECK(mentions(start(tensor_of(array), tensor_of(array), 0), "CPU_DEVICE_ID"));
  shorter->shape = {7};
  CHECK(mentions(start(tensor_of(shorter), tensor_of(shorter), cpu), "8 bytes, not 56"));
  CHECK(EnqueueTensorAllgather(nullptr, tensor_of(array), ReadyEventList(), "misuse", cpu,
                               never.callback())
            .type() == INVALID_ARGUMENT);
  CHECK(EnqueueBarrier(never.callback(), 9).type() == INVALID_ARGUMENT);
  auto flags = Array::of<char>(HOROVOD_BOOL, {2}, {0, 1});
  CHECK(EnqueueTensorAllreduce(context_for({}), tensor_of(flags), tensor_of(flags),
                               ReadyEventList(), "misuse", cpu, never.callback(), AVERAGE)
            .type() == INVALID_ARGUMENT);
  CHECK(EnqueueTensorAllreduce(context_for({}), tensor_of(array), tensor_of(array),
                               ReadyEventList(), "misuse", cpu, never.callback(),
                               static_cast<ReduceOp>(6))
            .type() == INVALID_ARGUMENT);
  CHECK(never.num_calls() == 0);
}

// An operation whose memory is not ready is not waited for, and does not read it before.
void wait_for_an_event() {
  auto event = std::make_shared<ArrayEvent>();
  ReadyEventList events;
  events.AddReadyEvent(event);
  CHECK(events.size() == 1 && !events.Ready());
  auto late = Array::of({0.0}), early = Array::of({1.0});
  Outcome first, second;
  CHECK_OK(EnqueueTensorAllreduce(context_for({}), tensor_of(late), tensor_of(late), events, "late",
                                  cpu, first.callback()));
  CHECK_OK(EnqueueTensorAllreduce(context_for({}), tensor_of(early), tensor_of(early),
                                  ReadyEventList(), "early", cpu, second.callback()));
  CHECK_OK(second.wait());
  CHECK(first.num_calls() == 0);
  *late = *Array::of({rank + 4.0});
  event->happen();
  CHECK_OK(first.wait());
  CHECK(late->values() == Doubles({9}) && early->values() == Doubles({2}));
}

void use_a_process_set() {
  const int only_second[] = {1};
  const int set = horovod::common::horovod_add_process_set(only_second, 1);
  CHECK(set == 1 && horovod_process_set_included(set) == rank);
  CHECK(horovod_add_process_set(only_second, 1) == -6);
  auto array = Array::of({rank + 1.0});
  auto last = Array::of<int64_t>(HOROVOD_INT64, {1}, {-1});
  Outcome reduced, joined;
  const Status status =
      EnqueueTensorAllreduce(context_for({}), tensor_of(array), tensor_of(array), ReadyEventList(),
                             "in the set", cpu, reduced.callback(), ReduceOp::SUM, 1.0, 1.0, set);
  if (rank == 1) {
    CHECK_OK(status);
    CHECK_OK(reduced.wait());
    CHECK(array->values() == Doubles({2}));
    CHECK_OK(EnqueueJoin(context_for({}), tensor_of(last), ReadyEventList(), "join", cpu,
                         joined.callback(), set));
    CHECK_OK(joined.wait());
    CHECK(last->values<int64_t>()[0] == 1);  // its rank in the world
  } else {
    CHECK(status.type() == INVALID_ARGUMENT && mentions(status, "not in process set 1"));
  }
  CHECK(horovod_remove_process_set(set) == set && horovod_process_set_size(set) == -3);
}

// Shut down while an operation waits for the other rank, which never asks for it.
void shut_down() {
  Outcome pending;
  auto array = Array::of({1.0});
  if (rank == 0) {
    CHECK_OK(EnqueueTensorAllreduce(context_for({}), tensor_of(array), tensor_of(array),
                                    ReadyEventList(), "abandoned", cpu, pending.callback()));
  }
  horovod_shutdown();
  if (rank == 0) CHECK(!pending.wait().ok());
  CHECK(EnqueueBarrier(pending.callback()).type() == PRECONDITION_ERROR);
}

}  // namespace

int main() {
  CHECK(Status::OK().ok() && Status::InProgress().in_progress());
  CHECK(Status::Aborted("x").type() == ABORTED && Status::UnknownError("x").reason() == "x");
  CHECK(TensorShape({2, 3}).DebugString() == "[2, 3]" && TensorShape().num_elements() == 1);
  CHECK(horovod_init(nullptr, 0, nullptr, nullptr, 0));
  rank = horovod::common::horovod_rank();
  reduce();
  reduce_a_group();
  gather();
  broadcast();
  exchange();
  reduce_and_scatter();
  meet();
  meet_from_two_threads();
  disagree();
  use_a_name_twice();
  misuse();
  wait_for_an_event();
  use_a_process_set();
  join();
  shut_down();
  std::printf("rank %d: all well\n", rank);
  return 0;
}
