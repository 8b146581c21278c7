#include "visit.h"

namespace kadril {

Error Visit::enter() {
  fault::hit(call_.kind, Phase::enter);
  if (auto error = channel_.check_usable(call_)) return error;
  channel_.begin_call();
  record_ = Recorder::begin(call_, channel_.board(), static_cast<uint32_t>(channel_.num_calls()),
                            static_cast<uint32_t>(size()));
  return nullptr;
}

void Visit::prepare(const Offer& offer) {
  Posting& mine = channel_.posting(me());
  const Arena& arena = channel_.arena();
  mine.fingerprint = call_.fingerprint();
  mine.call = call_;
  mine.bytes = offer.bytes;
  mine.source = offer.source ? arena.offset_of(offer.source, offer.source_bytes) : no_offset;
  mine.target = offer.target ? arena.offset_of(offer.target, offer.target_bytes) : no_offset;
  mine.staging = channel_.staging();
  mine.supplied = no_offset;
  mine.inlined = offer.bytes <= inline_bytes;
  mine.early = no_offset;
}

void Visit::announce() {
  channel_.post();
  hit(Phase::published);
}

Error Visit::confirm() {
  if (auto error = channel_.await_all(call_)) return error;
  return compare();
}

uint64_t Visit::early_half() const {
  if (channel_.staging() == no_offset) return no_offset;
  return channel_.staging() + (4 + channel_.parity()) * chunk_bytes;
}

Error Visit::compare() const {
  const uint64_t expected = posting(0).fingerprint;
  bool equal = true;
  for (int member = 1; member < size(); ++member) equal &= posting(member).fingerprint == expected;
  if (equal) return nullptr;
  auto error = fail(Reason::mismatch);
  for (int member = 0; member < size(); ++member)
    error->calls.push_back(posting(member).call.text());
  return error;
}

bool Visit::any_wish() const {
  for (int member = 0; member < size(); ++member) {
    if (posting(member).call.wish) return true;
  }
  return false;
}

bool Visit::all_inlined() const {
  for (int member = 0; member < size(); ++member) {
    if (!posting(member).inlined) return false;
  }
  return true;
}

bool Visit::all_sources_shared() const {
  for (int member = 0; member < size(); ++member) {
    if (posting(member).bytes > 0 && posting(member).source == no_offset) return false;
  }
  return true;
}

bool Visit::all_targets_shared() const {
  for (int member = 0; member < size(); ++member) {
    if (posting(member).target == no_offset) return false;
  }
  return true;
}

uint64_t Visit::staging_offset(int member) const {
  const Posting& theirs = posting(member);
  return theirs.staging != no_offset ? theirs.staging : theirs.supplied;
}

Error Visit::provide_staging() {
  bool complete = true;
  for (int member = 0; member < size(); ++member) {
    complete &= posting(member).bytes == 0 || posting(member).staging != no_offset;
  }
  if (complete) return nullptr;  // as seen by all members alike
  Posting& mine = channel_.posting(me());
  Error own_error;
  if (mine.bytes > 0) own_error = channel_.allocate_staging(staging_bytes);
  // Not in `staging`: a slower peer may still be deciding by that whether it is complete.
  mine.supplied = channel_.staging();
  if (auto error = channel_.meet(call_)) return error;
  if (own_error) return own_error;
  for (int member = 0; member < size(); ++member) {
    if (posting(member).bytes == 0 || staging_offset(member) != no_offset) continue;
    auto error = fail(Reason::no_room, "a peer could not allocate staging memory", member);
    error->needed = staging_bytes;
    return error;
  }
  return nullptr;
}

}  // namespace kadril
