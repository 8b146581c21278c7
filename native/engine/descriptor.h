// A descriptor: what one member asks its process set for, by name, and how it is held against what
// the others ask for under the same name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "call.h"
#include "dtype.h"
#include "engine/eras.h"
#include "kernels.h"

namespace kadril {

enum class Verb : uint8_t {
  allreduce,
  allgather,
  broadcast,
  alltoall,
  reducescatter,
  barrier,
  join,
};
inline constexpr int num_verbs = 7;
const char* name_of(Verb verb);

// The numbers are part of the public interface.
enum class Reduction : uint8_t { average, sum, adasum, min, max, product };
inline constexpr int num_reductions = 6;
const char* name_of(Reduction reduction);
Op op_of(Reduction reduction);

// One tensor of a request: its element type and shape.
struct Piece {
  DType dtype = DType::float32;
  std::vector<uint64_t> dims;

  uint64_t count() const;
  uint64_t row_count() const;  // elements of one row, that is, of all dims but the first
  uint64_t bytes() const { return count() * size_of(dtype); }
  bool operator==(const Piece&) const = default;
};

struct Descriptor {
  Verb verb = Verb::barrier;
  Reduction reduction = Reduction::sum;
  bool is_named = true;   // whether the name is the caller's own
  bool is_group = false;  // names of groups are apart from names of single tensors
  int32_t root = -1;      // member, of a broadcast
  Scale scale;
  Stamp stamp;  // of the step it belongs to
  std::string name;
  std::string note;  // compared as it is: for requests that carry an agreement and no data
  std::string site;  // where it was asked for; shown, not compared
  std::vector<Piece> pieces;
  std::vector<uint64_t> splits;  // of an all-to-all: rows for each member

  std::string key() const { return make_key(verb, is_group, name); }
  static std::string make_key(Verb verb, bool is_group, const std::string& name);
  static std::string name_in_key(const std::string& key) { return key.substr(2); }

  // Whether a name that is used again stands for the same, so that it need not be described again.
  bool same_request(const Descriptor& other) const;

  std::string text() const;  // "allreduce(float32[2, 3], sum, name='grad')"
  // What its text is made of, and little more.
  Descriptor brief() const;
  // As the flight record shows it.
  Call call() const;
  std::string text_with_site() const;
};

// The rows of member `m`, where `num_rows` are dealt out to `num_members`: the first get one more.
uint64_t rows_of_member(uint64_t num_rows, int member, int num_members);

// Why the descriptors of one name cannot be served together; empty where they can. Null stands for
// a member that has joined.
std::string find_disagreement(std::span<const Descriptor* const> descriptors);

// Flat bytes, for a message to the other members. A message from a peer is not trusted: reading
// past its end makes the reader fail instead.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  template <typename Value>
  void number(Value value) {
    const auto raw = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), raw, raw + sizeof value);
  }
  void text(const std::string& value);
  void descriptor(const Descriptor& value);

 private:
  std::vector<std::byte>& bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool has_failed() const { return failed_; }
  bool is_at_end() const { return !failed_ && position_ == bytes_.size(); }
  template <typename Value>
  Value number() {
    Value value{};
    read(&value, sizeof value);
    return value;
  }
  std::string text();
  Descriptor descriptor();

 private:
  void read(void* target, size_t size);
  size_t length(size_t item_bytes);  // of a list that follows

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  bool failed_ = false;
};

}  // namespace kadril
