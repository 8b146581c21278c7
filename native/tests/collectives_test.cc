// Every collective, 1 to 5 ranks, on every way (inlined, early, staged, shared), with results that
// are exact.
#include "collectives.h"

#include <cstring>
#include <numeric>

#include "harness.h"
#include "visit.h"

using namespace kadril;
using test::call_of;
using test::World;

namespace {

constexpr uint64_t chunk = chunk_bytes / sizeof(int32_t);
const uint64_t sizes[] = {0,         1,     3,         1023,          1024,     1025,
                          chunk - 1, chunk, chunk + 1, 2 * chunk + 7, 5 * chunk};

int32_t value(int rank, uint64_t i) { return static_cast<int32_t>(i % 1009) * 16 + rank; }

// Memory of one rank: on the heap, or in the arena.
class Memory {
 public:
  Memory(World& world, int rank, uint64_t count, bool shared)
      : world_(world), rank_(rank), bytes_(count * 4), own_(shared ? 0 : count + 1) {
    if (shared) CHECK_OK(world.arena()->allocate(rank, bytes_, offset_));
    data = shared ? reinterpret_cast<int32_t*>(world.arena()->at(offset_)) : own_.data();
  }
  ~Memory() {
    if (offset_ != no_offset) world_.arena()->release(rank_, offset_, bytes_);
  }
  int32_t* data;

 private:
  World& world_;
  int rank_;
  uint64_t bytes_;
  uint64_t offset_ = no_offset;
  std::vector<int32_t> own_;
};

int32_t sum_over_ranks(int size, uint64_t i) {
  int32_t sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += value(rank, i);
  return sum;
}

void test_allreduce_and_reduce(World& world, Channel& channel, uint64_t count, bool shared) {
  const int size = channel.num_members(), me = channel.me();
  Memory in(world, me, count, shared), out(world, me, count, shared);
  for (uint64_t i = 0; i < count; ++i) in.data[i] = value(me, i);
  CHECK_OK(allreduce(channel, call_of(DType::int32, count), in.data, out.data));
  for (uint64_t i = 0; i < count; ++i) CHECK(out.data[i] == sum_over_ranks(size, i));
  for (uint64_t i = 0; i < count; ++i) CHECK(in.data[i] == value(me, i));
  const int root = static_cast<int>(count) % size;
  for (uint64_t i = 0; i < count; ++i) out.data[i] = -1;
  CHECK_OK(reduce(channel, call_of(DType::int32, count, Op::sum, root), in.data, out.data));
  for (uint64_t i = 0; i < count; ++i)
    CHECK(out.data[i] == (me == root ? sum_over_ranks(size, i) : -1));
  CHECK_OK(allreduce(channel, call_of(DType::int32, count, Op::max), in.data, in.data));
  for (uint64_t i = 0; i < count; ++i) CHECK(in.data[i] == value(size - 1, i));
}

void test_broadcast(World& world, Channel& channel, uint64_t count, bool shared) {
  const int root = static_cast<int>(count + 1) % channel.num_members();
  Memory memory(world, channel.me(), count, shared);
  for (uint64_t i = 0; i < count; ++i) memory.data[i] = value(channel.me(), i);
  CHECK_OK(broadcast(channel, call_of(DType::int32, count, Op::sum, root), memory.data));
  for (uint64_t i = 0; i < count; ++i) CHECK(memory.data[i] == value(root, i));
}

void test_gather_and_scatter(World& world, Channel& channel, uint64_t count, bool shared) {
  const int size = channel.num_members(), me = channel.me();
  std::vector<uint64_t> counts;  // uneven, and one of them empty
  for (int rank = 0; rank < size; ++rank)
    counts.push_back(rank == 1 ? 0 : count + static_cast<uint64_t>(rank));
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  const uint64_t begin = std::accumulate(counts.begin(), counts.begin() + me, uint64_t{0});

  Memory part(world, me, counts[me], shared), whole(world, me, total, shared);
  for (uint64_t i = 0; i < counts[me]; ++i) part.data[i] = value(me, begin + i);
  Call gather;
  gather.dtype = DType::int32;
  CHECK_OK(allgatherv(channel, gather, part.data, whole.data, counts));
  for (int rank = 0, i = 0; rank < size; ++rank) {
    for (uint64_t k = 0; k < counts[rank]; ++k, ++i) CHECK(whole.data[i] == value(rank, i));
  }
  // In place: the part lies in the whole already.
  for (uint64_t i = 0; i < total; ++i) whole.data[i] = i - begin < counts[me] ? value(me, i) : -1;
  CHECK_OK(allgatherv(channel, gather, whole.data + begin, whole.data, counts));
  for (int rank = 0, i = 0; rank < size; ++rank) {
    for (uint64_t k = 0; k < counts[rank]; ++k, ++i) CHECK(whole.data[i] == value(rank, i));
  }
  for (uint64_t i = 0; i < total; ++i) whole.data[i] = value(me, i);
  CHECK_OK(reduce_scatterv(channel, gather, whole.data, part.data, counts));
  for (uint64_t i = 0; i < counts[me]; ++i) CHECK(part.data[i] == sum_over_ranks(size, begin + i));
}

void test_alltoall(World& world, Channel& channel, uint64_t count, bool shared) {
  const int size = channel.num_members(), me = channel.me();
  const auto between = [&](int from, int to) {
    return (from + to) % 3 == 2 ? 0 : count / 2 + static_cast<uint64_t>(from * 3 + to);
  };
  std::vector<uint64_t> sends, recvs;
  for (int rank = 0; rank < size; ++rank) {
    sends.push_back(between(me, rank));
    recvs.push_back(between(rank, me));
  }
  Memory in(world, me, std::accumulate(sends.begin(), sends.end(), uint64_t{0}), shared);
  Memory out(world, me, std::accumulate(recvs.begin(), recvs.end(), uint64_t{0}), shared);
  for (int to = 0, i = 0; to < size; ++to) {
    for (uint64_t k = 0; k < sends[to]; ++k, ++i) in.data[i] = value(me * size + to, k);
  }
  Call call;
  call.dtype = DType::int32;
  CHECK_OK(alltoallv(channel, call, in.data, sends, out.data, recvs));
  for (int from = 0, i = 0; from < size; ++from) {
    for (uint64_t k = 0; k < recvs[from]; ++k, ++i)
      CHECK(out.data[i] == value(from * size + me, k));
  }
}

// A ring in which the two neighbours of a rank may be the same one, twice.
void test_exchange(World& world, Channel& channel, uint64_t count, bool shared) {
  const int size = channel.num_members(), me = channel.me();
  const int left = (me + size - 1) % size, right = (me + 1) % size;
  Memory to_left(world, me, count, shared), to_right(world, me, count + 5, shared);
  Memory from_left(world, me, count + 5, shared), from_right(world, me, count, shared);
  for (uint64_t i = 0; i < count; ++i) to_left.data[i] = value(2 * me, i);
  for (uint64_t i = 0; i < count + 5; ++i) to_right.data[i] = value(2 * me + 1, i);
  const auto d = DType::int32;
  CHECK_OK(exchange(channel, {},
                    std::vector<Outgoing>{{left, d, to_left.data, count * 4},
                                          {right, d, to_right.data, (count + 5) * 4}},
                    std::vector<Incoming>{{right, d, from_right.data, count * 4},
                                          {left, d, from_left.data, (count + 5) * 4}}));
  for (uint64_t i = 0; i < count; ++i) CHECK(from_right.data[i] == value(2 * right, i));
  for (uint64_t i = 0; i < count + 5; ++i) CHECK(from_left.data[i] == value(2 * left + 1, i));
  // Lengths that differ between the ends: all members learn it, and the next call works.
  if (size > 1 && count > 0) {
    const uint64_t wrong = me == 0 ? count * 4 - 4 : count * 4;
    auto error = exchange(channel, {}, std::vector<Outgoing>{{right, d, to_left.data, wrong}},
                          std::vector<Incoming>{{left, d, from_right.data, count * 4}});
    CHECK(error && error->reason == Reason::mismatch);
  }
}

// One exchange right after the other, so that a member lays the next one open while a slow
// one still reads: of changing lengths, other calls between them, one member's memory
// shared now and then.
void exchanges_follow_each_other(int size) {
  World world(size);
  world.run([&](Channel& channel) {
    const int me = channel.me(), left = (me + size - 1) % size, right = (me + 1) % size;
    const auto d = DType::int32;
    for (int number = 0; number < 60; ++number) {
      const uint64_t count = number % 3 ? 3'000 + 20'011 * static_cast<uint64_t>(number % 3) : 900;
      Memory to(world, me, count, me == 0 && number % 5 == 0), from(world, me, count, false);
      for (uint64_t i = 0; i < count; ++i) to.data[i] = value(100 * number + me, i);
      CHECK_OK(exchange(channel, {}, std::vector<Outgoing>{{right, d, to.data, count * 4}},
                        std::vector<Incoming>{{left, d, from.data, count * 4}}));
      for (uint64_t i = 0; i < count; ++i) CHECK(from.data[i] == value(100 * number + left, i));
      if (number % 7 == 0) {
        CHECK_OK(allreduce(channel, call_of(d, count), from.data, from.data));
      }
    }
  });
}

// A member that has no room for its staging memory: all fail, nothing moves, the
// channel stays usable.
void no_room_for_staging_fails_everywhere() {
  World world(2);
  uint64_t hog;
  CHECK_OK(world.arena()->allocate(1, 256 << 20, hog));
  world.run([&](Channel& channel) {
    std::vector<float> data(100'000, 1);
    auto error = allreduce(channel, call_of(DType::float32, data.size()), data.data(), data.data());
    CHECK(error && error->reason == Reason::no_room && error->member == 1);
    CHECK(data[0] == 1);
    CHECK_OK(barrier(channel, {}));
    if (channel.me() == 1) world.arena()->release(1, hog, 256 << 20);
    CHECK_OK(barrier(channel, {}));
    CHECK_OK(allreduce(channel, call_of(DType::float32, data.size()), data.data(), data.data()));
    CHECK(data[0] == 2);
  });
}

}  // namespace

int main() {
  for (int size = 1; size <= 5; ++size) {
    for (const bool shared : {false, true}) {
      World world(size);
      world.run([&](Channel& channel) {
        for (const uint64_t count : sizes) {
          test_allreduce_and_reduce(world, channel, count, shared);
          test_broadcast(world, channel, count, shared);
          test_gather_and_scatter(world, channel, count, shared);
          test_alltoall(world, channel, count, shared);
          test_exchange(world, channel, count, shared);
        }
      });
    }
  }
  for (int size = 2; size <= 4; ++size) exchanges_follow_each_other(size);
  no_room_for_staging_fails_everywhere();
}
