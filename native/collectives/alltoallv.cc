// All-to-all: an exchange with everybody, which has a name of its own in errors and records.
#include <cstddef>
#include <vector>

#include "collectives.h"

namespace kadril {

Error alltoallv(Channel& channel, Call call, const void* source,
                std::span<const uint64_t> send_counts, void* target,
                std::span<const uint64_t> recv_counts) {
  call.kind = Kind::alltoallv;
  const size_t item = size_of(call.dtype);
  std::vector<Outgoing> sends;
  std::vector<Incoming> recvs;
  auto from = static_cast<const std::byte*>(source);
  auto to = static_cast<std::byte*>(target);
  for (int m = 0; m < channel.num_members(); ++m) {
    sends.push_back({m, call.dtype, from, send_counts[m] * item});
    recvs.push_back({m, call.dtype, to, recv_counts[m] * item});
    from += send_counts[m] * item;
    to += recv_counts[m] * item;
  }
  return exchange(channel, call, sends, recvs);
}

}  // namespace kadril
