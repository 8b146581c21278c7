#include "engine/descriptor.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace kadril {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string list(std::span<const uint64_t> values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(values[i]);
  }
  return text + "]";
}

std::string shape_of(const Piece& piece) {
  return std::string(name_of(piece.dtype)) + list(piece.dims);
}

bool reduces(Verb verb) { return verb == Verb::allreduce || verb == Verb::reducescatter; }

// Whether members may bring different numbers of rows.
bool has_own_rows(Verb verb) { return verb == Verb::allgather || verb == Verb::alltoall; }

std::string which(size_t piece, size_t num_pieces) {
  return num_pieces == 1 ? "" : " of tensor " + std::to_string(piece);
}

std::string piece_disagreement(const Descriptor& a, const Descriptor& b) {
  if (a.pieces.size() != b.pieces.size()) return "the number of tensors differs";
  for (size_t i = 0; i < a.pieces.size(); ++i) {
    const Piece& mine = a.pieces[i];
    const Piece& theirs = b.pieces[i];
    const std::string where = which(i, a.pieces.size());
    if (mine.dtype != theirs.dtype) return "the dtype" + where + " differs";
    if (mine.dims.size() != theirs.dims.size()) return "the number of dims" + where + " differs";
    const size_t first = has_own_rows(a.verb) ? 1 : 0;
    for (size_t dim = first; dim < mine.dims.size(); ++dim) {
      if (mine.dims[dim] != theirs.dims[dim]) return "the shape" + where + " differs";
    }
  }
  return "";
}

std::string pair_disagreement(const Descriptor& a, const Descriptor& b) {
  if (a.note != b.note) return "what is to be agreed on differs";
  if (a.root != b.root) return "the root differs";
  if (reduces(a.verb) && a.reduction != b.reduction) return "the op differs";
  if (reduces(a.verb) && (a.scale.before != b.scale.before || a.scale.after != b.scale.after)) {
    return "the scale factors differ";
  }
  return piece_disagreement(a, b);
}

Kind kind_of(Verb verb) {
  switch (verb) {
    case Verb::allreduce:
      return Kind::allreduce;
    case Verb::allgather:
      return Kind::allgatherv;
    case Verb::broadcast:
      return Kind::broadcast;
    case Verb::alltoall:
      return Kind::alltoallv;
    case Verb::reducescatter:
      return Kind::reduce_scatterv;
    case Verb::barrier:
    case Verb::join:
      break;
  }
  return Kind::barrier;
}

}  // namespace

const char* name_of(Verb verb) {
  static constexpr const char* names[num_verbs] = {
      "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join"};
  return names[static_cast<int>(verb)];
}

const char* name_of(Reduction reduction) {
  static constexpr const char* names[num_reductions] = {"average", "sum", "adasum",
                                                        "min",     "max", "product"};
  return names[static_cast<int>(reduction)];
}

Op op_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::min:
      return Op::min;
    case Reduction::max:
      return Op::max;
    case Reduction::product:
      return Op::product;
    default:
      return Op::sum;
  }
}

uint64_t Piece::count() const {
  uint64_t count = 1;
  for (const uint64_t dim : dims) count *= dim;
  return count;
}

uint64_t Piece::row_count() const {
  uint64_t count = 1;
  for (size_t dim = 1; dim < dims.size(); ++dim) count *= dims[dim];
  return count;
}

std::string Descriptor::make_key(Verb verb, bool is_group, const std::string& name) {
  std::string key;
  key.reserve(name.size() + 2);
  key += static_cast<char>('a' + static_cast<int>(verb));
  key += is_group ? 'g' : 's';
  return key += name;
}

bool Descriptor::same_request(const Descriptor& other) const {
  return verb == other.verb && reduction == other.reduction && root == other.root &&
         scale.before == other.scale.before && scale.after == other.scale.after &&
         is_named == other.is_named && is_group == other.is_group && stamp.era == other.stamp.era &&
         name == other.name && note == other.note && pieces == other.pieces &&
         splits == other.splits;
}

std::string Descriptor::text() const {
  std::string text = name_of(verb);
  const char* separator = "(";
  const auto add = [&](const std::string& argument) {
    text += separator + argument;
    separator = ", ";
  };
  for (const Piece& piece : pieces) {
    if (&piece - pieces.data() == 4 && pieces.size() > 5) {
      add("and " + std::to_string(pieces.size() - 4) + " more");
      break;
    }
    add(shape_of(piece));
  }
  if (reduces(verb)) add(name_of(reduction));
  if (root >= 0) add("root=" + std::to_string(root));
  if (!splits.empty()) add("splits=" + list(splits));
  if (scale.before != 1) add("prescale=" + number(scale.before));
  if (scale.after != 1) add("postscale=" + number(scale.after));
  if (is_group) add("group");
  if (!note.empty()) add(note);
  if (!name.empty()) add(is_named ? "name='" + name + "'" : "unnamed");
  text += *separator == '(' ? "()" : ")";
  return text;
}

Descriptor Descriptor::brief() const {
  constexpr size_t max_pieces = 5;
  Descriptor brief;
  brief.verb = verb;
  brief.reduction = reduction;
  brief.is_named = is_named;
  brief.is_group = is_group;
  brief.root = root;
  brief.scale = scale;
  brief.name = name;
  brief.note = note;
  const size_t num_pieces = pieces.size() > max_pieces ? max_pieces - 1 : pieces.size();
  brief.pieces.assign(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(num_pieces));
  const size_t num_left = pieces.size() - num_pieces;
  if (num_left > 0) brief.note += "and " + std::to_string(num_left) + " more";
  return brief;
}

Call Descriptor::call() const {
  Call call;
  call.kind = kind_of(verb);
  call.root = root;
  for (const Piece& piece : pieces) {
    call.dtype = piece.dtype;
    call.count += piece.count();
  }
  if (is_named) call.set_name(name);
  return call;
}

std::string Descriptor::text_with_site() const {
  return site.empty() ? text() : text() + " at " + site;
}

uint64_t rows_of_member(uint64_t num_rows, int member, int num_members) {
  const auto size = static_cast<uint64_t>(num_members);
  return num_rows / size + (static_cast<uint64_t>(member) < num_rows % size ? 1 : 0);
}

std::string find_disagreement(std::span<const Descriptor* const> descriptors) {
  const Descriptor* first = nullptr;
  bool has_joined = false;
  for (const Descriptor* descriptor : descriptors) {
    if (!descriptor) {
      has_joined = true;
    } else if (!first) {
      first = descriptor;
    } else if (std::string problem = pair_disagreement(*first, *descriptor); !problem.empty()) {
      return problem;
    }
  }
  const bool is_plain_barrier = first->verb == Verb::barrier && first->note.empty();
  if (has_joined && first->verb != Verb::allreduce && !is_plain_barrier) {
    return std::string("a member has called join(), and ") + name_of(first->verb) +
           " needs every member";
  }
  if (has_joined && first->reduction == Reduction::adasum && first->verb == Verb::allreduce) {
    return "a member has called join(), and adasum needs every member";
  }
  return "";
}

void Writer::text(const std::string& value) {
  number(static_cast<uint32_t>(value.size()));
  const auto raw = reinterpret_cast<const std::byte*>(value.data());
  bytes_.insert(bytes_.end(), raw, raw + value.size());
}

void Writer::descriptor(const Descriptor& value) {
  number(value.verb);
  number(value.reduction);
  number(static_cast<uint8_t>(value.is_named));
  number(static_cast<uint8_t>(value.is_group));
  number(value.root);
  number(value.scale.before);
  number(value.scale.after);
  number(value.stamp.step);
  number(value.stamp.era);
  text(value.name);
  text(value.note);
  text(value.site);
  number(static_cast<uint32_t>(value.pieces.size()));
  for (const Piece& piece : value.pieces) {
    number(piece.dtype);
    number(static_cast<uint32_t>(piece.dims.size()));
    for (const uint64_t dim : piece.dims) number(dim);
  }
  number(static_cast<uint32_t>(value.splits.size()));
  for (const uint64_t rows : value.splits) number(rows);
}

void Reader::read(void* target, size_t size) {
  if (failed_ || size > bytes_.size() - position_) {
    failed_ = true;
    return;
  }
  std::memcpy(target, bytes_.data() + position_, size);
  position_ += size;
}

size_t Reader::length(size_t item_bytes) {
  const size_t length = number<uint32_t>();
  if (length * item_bytes > bytes_.size() - position_) failed_ = true;
  return failed_ ? 0 : length;
}

std::string Reader::text() {
  std::string value(length(1), '\0');
  read(value.data(), value.size());
  return value;
}

Descriptor Reader::descriptor() {
  Descriptor value;
  value.verb = static_cast<Verb>(number<uint8_t>());
  value.reduction = static_cast<Reduction>(number<uint8_t>());
  value.is_named = number<uint8_t>() != 0;
  value.is_group = number<uint8_t>() != 0;
  value.root = number<int32_t>();
  value.scale.before = number<double>();
  value.scale.after = number<double>();
  value.stamp.step = number<uint64_t>();
  value.stamp.era = number<uint64_t>();
  value.name = text();
  value.note = text();
  value.site = text();
  value.pieces.resize(length(sizeof(uint8_t) + sizeof(uint32_t)));
  for (Piece& piece : value.pieces) {
    piece.dtype = static_cast<DType>(number<uint8_t>());
    piece.dims.resize(length(sizeof(uint64_t)));
    for (uint64_t& dim : piece.dims) dim = number<uint64_t>();
    failed_ |= static_cast<int>(piece.dtype) >= num_dtypes;
  }
  value.splits.resize(length(sizeof(uint64_t)));
  for (uint64_t& rows : value.splits) rows = number<uint64_t>();
  failed_ |= static_cast<int>(value.verb) >= num_verbs ||
             static_cast<int>(value.reduction) >= num_reductions;
  return value;
}

}  // namespace kadril
