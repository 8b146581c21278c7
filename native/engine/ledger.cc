#include "engine/ledger.h"

#include <algorithm>
#include <utility>

namespace kadril {
namespace {

constexpr uint32_t join_id = ~0u;  // stands for join() where the number of a name is told

}  // namespace

const Descriptor& Agreement::any() const {
  for (size_t member = 0; member < entry->said.size(); ++member) {
    if (entry->is_present[member]) return entry->said[member];
  }
  return mine->descriptor;
}

Ledger::Ledger(int num_members, int me, size_t capacity)
    : num_members_(num_members),
      me_(me),
      capacity_(capacity),
      met_(num_members),
      promotions_(static_cast<size_t>(num_members)),
      joined_(static_cast<size_t>(num_members)),
      stuck_on_(static_cast<size_t>(num_members)) {}

// message:  number of withdrawn ids | ids | number of untold | their keys and stamps
//           | step of the ids | number of ids | ids
//           | number of descriptors | descriptors [| id it is stuck on]
//
// A name that was used before is told by its number, if it is used as before, and by the same step as
// the others of the message: most often one step is under way.
void Ledger::write(std::vector<std::unique_ptr<Request>> requests,
                   const std::vector<std::shared_ptr<Completion>>& withdrawn,
                   const std::vector<Untold>& untold, std::vector<std::byte>& message) {
  std::vector<uint32_t> ids, withdrawn_ids;
  uint64_t step = 0;
  for (const auto& completion : withdrawn) {
    if (join_ && join_->completion == completion) {
      withdrawn_ids.push_back(join_id);
      withdrawn_.push_back(std::move(join_));
      continue;
    }
    LedgerEntry* entry = find_mine(completion.get());
    if (!entry) continue;
    withdrawn_ids.push_back(entry->id);
    withdrawn_.push_back(std::move(entry->mine));
    --num_mine_;
  }
  const auto self = static_cast<size_t>(me_);
  for (auto& request : requests) {
    const auto known = ids_.find(request->descriptor.key());
    if (known != ids_.end()) {
      LedgerEntry& entry = *entries_[known->second];
      const bool is_same_step = ids.empty() || request->descriptor.stamp.step == step;
      if (is_same_step && entry.has_said[self] &&
          entry.said[self].same_request(request->descriptor)) {
        step = request->descriptor.stamp.step;
        ids.push_back(entry.id);
        entry.mine = std::move(request);
        ++num_mine_;
        continue;
      }
      // Looked up at the first use only.
      if (request->descriptor.site.empty()) request->descriptor.site = entry.said[self].site;
    }
    sent_.push_back(std::move(request));
  }
  Writer writer(message);
  writer.number(static_cast<uint32_t>(withdrawn_ids.size()));
  for (const uint32_t id : withdrawn_ids) writer.number(id);
  writer.number(static_cast<uint32_t>(untold.size()));
  for (const Untold& each : untold) {
    writer.text(each.key);
    writer.number(each.stamp.step);
    writer.number(each.stamp.era);
  }
  writer.number(step);
  writer.number(static_cast<uint32_t>(ids.size()));
  for (const uint32_t id : ids) writer.number(id);
  writer.number(static_cast<uint32_t>(sent_.size()));
  for (const auto& request : sent_) writer.descriptor(request->descriptor);
}

bool Ledger::waits_for(const Completion* completion) const {
  return (join_ && join_->completion.get() == completion) || find_mine(completion) != nullptr;
}

bool Ledger::find_missing(const Completion& completion, Waiters::Members& missing) const {
  if (joined_.size() > max_missing) return false;
  const LedgerEntry* entry = nullptr;
  if (!join_ || join_->completion.get() != &completion) {
    const auto known = ids_.find(completion.key);
    if (known == ids_.end()) return false;
    entry = entries_[known->second].get();
    const bool is_told = entry->num_present > 0 && entry->is_present[static_cast<size_t>(me_)];
    if (!is_told || !entry->mine || entry->mine->completion.get() != &completion) return false;
  }
  missing = {};
  for (size_t member = 0; member < joined_.size(); ++member) {
    if (joined_[member] || (entry && entry->is_present[member])) continue;
    missing[member / 64] |= uint64_t{1} << member % 64;
  }
  return true;
}

void Ledger::write_stuck(const Completion* completion, std::vector<std::byte>& message) const {
  const LedgerEntry* found = find_mine(completion);
  const bool is_join = join_ && join_->completion.get() == completion;
  if (!found && !is_join) return;
  Writer writer(message);
  writer.number(uint32_t{0});
  writer.number(uint32_t{0});
  writer.number(uint64_t{0});
  writer.number(uint32_t{0});
  writer.number(uint32_t{0});
  writer.number(is_join ? join_id : found->id);
}

bool Ledger::read(std::span<const std::vector<std::byte>> messages, std::vector<Agreement>& ready) {
  has_news_ = false;
  num_stuck_ = 0;
  // Withdrawals first, whoever sent them: else what is asked for in this cycle would be served with
  // a request that is withdrawn in it.
  for (int member = 0; member < num_members_; ++member) {
    const auto& message = messages[static_cast<size_t>(member)];
    Reader reader(message);
    if (!message.empty() && !read_withdrawals(member, reader)) return false;
  }
  for (int member = 0; member < num_members_; ++member) {
    if (!read_one(member, messages[static_cast<size_t>(member)], ready)) return false;
  }
  sent_.clear();
  settle_joins(ready);
  // What a member was stuck on may have come with the news.
  if (has_news_) num_stuck_ = 0;
  return !is_deadlocked() || is_stuck_on_pending();
}

bool Ledger::read_one(int member, std::span<const std::byte> message,
                      std::vector<Agreement>& ready) {
  if (message.empty()) return true;
  Reader reader(message);
  const auto num_withdrawn = reader.number<uint32_t>();
  for (uint32_t i = 0; i < num_withdrawn && !reader.has_failed(); ++i) reader.number<uint32_t>();
  const auto num_untold = reader.number<uint32_t>();
  for (uint32_t i = 0; i < num_untold && !reader.has_failed(); ++i) {
    reader.text();
    reader.number<uint64_t>();
    reader.number<uint64_t>();
  }
  const auto step = reader.number<uint64_t>();
  const auto num_ids = reader.number<uint32_t>();
  for (uint32_t i = 0; i < num_ids && !reader.has_failed(); ++i) {
    const auto id = reader.number<uint32_t>();
    if (id >= entries_.size() || !entries_[id]) return false;
    entries_[id]->said[static_cast<size_t>(member)].stamp.step = step;
    mark_present(*entries_[id], member, ready);
  }
  const auto num_descriptors = reader.number<uint32_t>();
  has_news_ |= num_ids > 0 || num_descriptors > 0;
  for (uint32_t i = 0; i < num_descriptors; ++i) {
    Descriptor descriptor = reader.descriptor();
    if (reader.has_failed()) return false;
    std::unique_ptr<Request> mine = member == me_ ? std::move(sent_[i]) : nullptr;
    if (descriptor.verb == Verb::join) {
      if (mine) join_ = std::move(mine);
      mark_joined(member);
      continue;
    }
    LedgerEntry& entry = find_or_make(descriptor.key());
    if (mine) {
      entry.mine = std::move(mine);
      ++num_mine_;
    }
    entry.said[static_cast<size_t>(member)] = std::move(descriptor);
    entry.has_said[static_cast<size_t>(member)] = true;
    mark_present(entry, member, ready);
  }
  if (reader.has_failed() || reader.is_at_end()) return !reader.has_failed();
  stuck_on_[static_cast<size_t>(member)] = reader.number<uint32_t>();
  ++num_stuck_;
  return reader.is_at_end();
}

bool Ledger::read_withdrawals(int member, Reader& reader) {
  const auto num_withdrawn = reader.number<uint32_t>();
  for (uint32_t i = 0; i < num_withdrawn && !reader.has_failed(); ++i) {
    const auto id = reader.number<uint32_t>();
    if (id == join_id && joined_[static_cast<size_t>(member)]) {
      joined_[static_cast<size_t>(member)] = false;
      --num_joined_;
      has_news_ = true;
      continue;
    }
    if (reader.has_failed() || id >= entries_.size() || !entries_[id]) return false;
    LedgerEntry& entry = *entries_[id];
    if (!entry.has_said[static_cast<size_t>(member)]) return false;
    has_news_ = true;
    const Descriptor& said = entry.said[static_cast<size_t>(member)];
    // Not present: taken out in this very cycle, since another member has withdrawn its own.
    if (entry.num_present > 0 && entry.is_present[static_cast<size_t>(member)]) {
      entry.is_present[static_cast<size_t>(member)] = false;
      if (--entry.num_present == 0 && !said.is_named) unnamed_.push_back(entry.id);
    }
    if (said.stamp.era > 0) withdraw_era(entry, member, said.stamp);
  }
  const auto num_untold = reader.number<uint32_t>();
  for (uint32_t i = 0; i < num_untold && !reader.has_failed(); ++i) {
    const std::string key = reader.text();
    Stamp stamp;
    stamp.step = reader.number<uint64_t>();
    stamp.era = reader.number<uint64_t>();
    if (reader.has_failed() || key.size() < 2) return false;
    has_news_ = true;
    stamp.era = era_of(member, stamp);
    withdraw_era(find_or_make(key), member, stamp);
  }
  return !reader.has_failed();
}

// This member asks for it in a later era, if ever again.
void Ledger::withdraw_era(LedgerEntry& entry, int member, const Stamp& stamp) {
  const Stamp ended = stamp;  // which may change where it lies
  auto& first = entry.first_era[static_cast<size_t>(member)];
  first = std::max(first, ended.era + 1);
  end_steps(entry, static_cast<size_t>(member), ended);
  entry.last_used = ++num_agreements_;  // is not forgotten before the others have come to it
  drop_stale(entry);
}

// The era of a step, which may be later than the member knew when it stamped its request.
uint64_t Ledger::era_of(int member, const Stamp& stamp) const {
  const Stamp& promotion = promotions_[static_cast<size_t>(member)];
  const bool is_promoted = promotion.step > 0 && stamp.step >= promotion.step;
  return is_promoted ? std::max(stamp.era, promotion.era) : stamp.era;
}

// A member that will not meet this one's request: it may ask for it in a later era only, or has gone
// on from the step that has met this one's. With the member -1 where there is none.
Ledger::Later Ledger::find_later(const LedgerEntry& entry, size_t member) const {
  const Stamp& mine = entry.said[member].stamp;
  for (size_t other = 0; other < entry.said.size(); ++other) {
    const int found = static_cast<int>(other);
    if (entry.first_era[other] > mine.era) return {found, 0};
    if (other == member) continue;
    const uint64_t met = met_.partner(member, mine.step, other);
    const uint64_t asked = entry.is_present[other] ? entry.said[other].stamp.step : 0;
    if (met > 0 && asked > met) return {found, asked};
    // Or that one's step has met a later one of this member.
    if (asked > 0 && met_.partner(other, asked, member) > mine.step) return {found, 0};
    const uint64_t next = met > 0 && asked != met ? met_.next_after(other, met) : 0;
    if (next > 0) return {found, next};
  }
  return {};
}

// A step of a member is over, and those that it has met. Members that have gone on from theirs in
// silence are in a later era: what is withdrawn of the steps that are over has nothing to do with that.
void Ledger::end_steps(const LedgerEntry& entry, size_t member, const Stamp& ended) {
  const uint64_t next_era = ended.era + 1;
  era_ = std::max(era_, next_era);
  met_.end_all(member, ended.step, next_era);
  for (size_t other = 0; other < entry.said.size(); ++other) {
    const uint64_t met = met_.partner(member, ended.step, other);
    if (met == 0) continue;
    const uint64_t asked = entry.is_present[other] ? entry.said[other].stamp.step : 0;
    const uint64_t next = asked > met ? asked : met_.next_after(other, met);
    if (next > 0) promote(other, {next, next_era});
  }
}

// This step of a member and later ones are of this era at least.
void Ledger::promote(size_t member, const Stamp& from) {
  Stamp& promotion = promotions_[member];
  if (promotion.step > 0 && promotion.step <= from.step && promotion.era >= from.era) return;
  promotion = from;
  for (const auto& each : entries_) {
    if (!each || each->num_present == 0 || !each->is_present[member]) continue;
    Stamp& stamp = each->said[member].stamp;
    stamp.era = era_of(static_cast<int>(member), stamp);
    each->first_era[member] = std::max(each->first_era[member], stamp.era);
  }
}

// Take out the requests that others will not meet any more. All members do so at the same message.
void Ledger::drop_stale(LedgerEntry& entry) {
  for (size_t member = 0; entry.num_present > 0 && member < entry.is_present.size(); ++member) {
    if (!entry.is_present[member] || entry.said[member].stamp.era == 0) continue;
    const Later later = find_later(entry, member);
    if (later.member < 0) continue;
    entry.is_present[member] = false;
    --entry.num_present;
    const uint64_t first = entry.first_era[static_cast<size_t>(later.member)];
    Stamp ended = entry.said[member].stamp;
    if (later.step == 0) ended.era = std::max(ended.era, first - 1);
    end_steps(entry, member, ended);
    if (!entry.mine || static_cast<int>(member) != me_) continue;
    stale_.push_back({std::move(entry.mine), later.member});
    --num_mine_;
  }
}

LedgerEntry* Ledger::find_mine(const Completion* completion) const {
  for (const auto& entry : entries_) {
    if (entry && entry->mine && entry->mine->completion.get() == completion) return entry.get();
  }
  return nullptr;
}

std::vector<std::unique_ptr<Request>> Ledger::take_withdrawn() {
  return std::exchange(withdrawn_, {});
}

std::vector<Stale> Ledger::take_stale() { return std::exchange(stale_, {}); }

bool Ledger::is_stuck_on_pending() const {
  for (size_t member = 0; member < stuck_on_.size(); ++member) {
    const uint32_t id = stuck_on_[member];
    if (id == join_id ? !joined_[member] : id >= entries_.size() || !entries_[id]) return false;
    if (id == join_id) continue;
    if (entries_[id]->num_present == 0 || !entries_[id]->is_present[member]) return false;
  }
  return true;
}

LedgerEntry& Ledger::find_or_make(const std::string& key) {
  const auto known = ids_.find(key);
  if (known != ids_.end()) return *entries_[known->second];
  uint32_t id = static_cast<uint32_t>(entries_.size());
  if (free_ids_.empty()) {
    entries_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  const auto size = static_cast<size_t>(num_members_);
  auto entry = std::make_unique<LedgerEntry>();
  entry->id = id;
  entry->key = key;
  entry->said.resize(size);
  entry->has_said.resize(size);
  entry->is_present.resize(size);
  entry->first_era.resize(size);
  entry->last_step.resize(size);
  ids_.emplace(key, id);
  return *(entries_[id] = std::move(entry));
}

void Ledger::mark_present(LedgerEntry& entry, int member, std::vector<Agreement>& ready) {
  if (entry.num_present == 0) {
    entry.since = Clock::now();
    entry.is_present.assign(entry.is_present.size(), false);
  }
  const auto index = static_cast<size_t>(member);
  entry.is_present[index] = true;
  ++entry.num_present;
  Stamp& stamp = entry.said[index].stamp;
  const uint64_t before = std::exchange(entry.last_step[index], stamp.step);
  const bool has_gone_on = before > 0 && stamp.step > before;
  if (has_gone_on) {
    const uint64_t next_era = met_.next_era(index, before);
    if (next_era > 0) promote(index, {stamp.step, next_era});
  }
  stamp.era = era_of(member, stamp);
  entry.first_era[index] = std::max(entry.first_era[index], stamp.era);
  if (has_gone_on && met_.end(index, before, stamp.step)) {
    for (const auto& each : entries_) {
      if (each && each->num_present > 0) drop_stale(*each);
    }
  }
  drop_stale(entry);
  if (is_complete(entry)) close_entry(entry, ready);
}

bool Ledger::is_complete(const LedgerEntry& entry) const {
  if (entry.num_present == num_members_) return true;
  if (num_joined_ == 0 || entry.num_present == 0) return false;
  for (size_t member = 0; member < joined_.size(); ++member) {
    if (!entry.is_present[member] && !joined_[member]) return false;
  }
  return true;
}

void Ledger::close_entry(LedgerEntry& entry, std::vector<Agreement>& ready) {
  std::vector<const Descriptor*> said(joined_.size());
  std::vector<uint64_t> steps(joined_.size());
  for (size_t member = 0; member < said.size(); ++member) {
    if (!entry.is_present[member]) continue;
    said[member] = &entry.said[member];
    steps[member] = entry.said[member].stamp.step;
  }
  met_.meet(steps);
  Agreement agreement;
  agreement.entry = &entry;
  agreement.problem = find_disagreement(said);
  if (!agreement.problem.empty()) end_eras(entry);
  if (entry.mine) {
    agreement.mine = std::move(entry.mine);
    --num_mine_;
  }
  entry.last_used = ++num_agreements_;
  entry.num_present = 0;  // `is_present` still tells who takes part, until the name is used again
  if (!entry.said[static_cast<size_t>(&agreement.any() - entry.said.data())].is_named) {
    unnamed_.push_back(entry.id);
  }
  ready.push_back(std::move(agreement));
}

// What was asked for of this name has failed, and with it the steps that asked for it.
void Ledger::end_eras(const LedgerEntry& entry) {
  for (size_t member = 0; member < entry.is_present.size(); ++member) {
    const uint64_t era = entry.said[member].stamp.era;
    if (entry.is_present[member] && era > 0) era_ = std::max(era_, era + 1);
  }
}

void Ledger::mark_joined(int member) {
  if (joined_[static_cast<size_t>(member)]) return;
  joined_[static_cast<size_t>(member)] = true;
  ++num_joined_;
  last_joined_ = member;
  joins_changed_ = true;
}

void Ledger::settle_joins(std::vector<Agreement>& ready) {
  if (!joins_changed_) return;
  joins_changed_ = false;
  for (const auto& entry : entries_) {
    if (entry && entry->num_present > 0 && is_complete(*entry)) close_entry(*entry, ready);
  }
  if (num_joined_ < num_members_) return;
  if (join_) {
    Agreement agreement;
    agreement.mine = std::move(join_);
    agreement.mine->completion->last_joined = last_joined_;
    ready.push_back(std::move(agreement));
  }
  joined_.assign(joined_.size(), false);
  num_joined_ = 0;
}

void Ledger::drop(LedgerEntry& entry) {
  const uint32_t id = entry.id;
  ids_.erase(entry.key);
  entries_[id].reset();
  free_ids_.push_back(id);
}

void Ledger::forget_old() {
  for (const uint32_t id : unnamed_) {
    if (entries_[id] && entries_[id]->num_present == 0) drop(*entries_[id]);
  }
  unnamed_.clear();
  if (ids_.size() <= capacity_ + capacity_ / 8) return;
  std::vector<LedgerEntry*> idle;
  for (const auto& entry : entries_) {
    if (entry && entry->num_present == 0) idle.push_back(entry.get());
  }
  std::sort(idle.begin(), idle.end(),
            [](const LedgerEntry* a, const LedgerEntry* b) { return a->last_used < b->last_used; });
  for (LedgerEntry* entry : idle) {
    if (ids_.size() <= capacity_) break;
    drop(*entry);
  }
}

std::vector<std::unique_ptr<Request>> Ledger::take_pending() {
  std::vector<std::unique_ptr<Request>> pending;
  for (const auto& entry : entries_) {
    if (entry && entry->mine) pending.push_back(std::move(entry->mine));
  }
  for (auto& request : sent_) {
    if (request) pending.push_back(std::move(request));
  }
  for (auto& request : withdrawn_) pending.push_back(std::move(request));
  for (auto& stale : stale_) pending.push_back(std::move(stale.mine));
  if (join_) pending.push_back(std::move(join_));
  withdrawn_.clear();
  stale_.clear();
  sent_.clear();
  num_mine_ = 0;
  return pending;
}

std::vector<std::unique_ptr<Request>> Ledger::dissolve() {
  for (const auto& entry : entries_) {
    if (!entry || entry->num_present == 0) continue;
    const auto someone = std::find(entry->is_present.begin(), entry->is_present.end(), true);
    const auto index = static_cast<size_t>(someone - entry->is_present.begin());
    if (!entry->said[index].is_named) unnamed_.push_back(entry->id);
    end_eras(*entry);
    entry->num_present = 0;
  }
  joined_.assign(joined_.size(), false);
  num_joined_ = 0;
  auto requests = take_pending();
  forget_old();
  return requests;
}

Error Ledger::describe_deadlock() const {
  auto error = fail(Reason::mismatch,
                    "every rank waits until the others ask for the same, and none of them can: all"
                    " of them are blocked");
  for (size_t member = 0; member < stuck_on_.size(); ++member) {
    error->calls.push_back(stuck_on_[member] == join_id
                               ? "join()"
                               : entries_[stuck_on_[member]]->said[member].text_with_site());
  }
  return error;
}

int Ledger::first_missing() const {
  const LedgerEntry* oldest = nullptr;
  for (const auto& entry : entries_) {
    if (entry && entry->mine && (!oldest || entry->since < oldest->since)) oldest = entry.get();
  }
  for (int member = 0; member < num_members_; ++member) {
    const auto index = static_cast<size_t>(member);
    const bool is_missing = oldest ? !oldest->is_present[index] : !joined_[index];
    if (member != me_ && is_missing) return member;
  }
  return me_;
}

std::vector<const LedgerEntry*> Ledger::pending() const {
  std::vector<const LedgerEntry*> pending;
  for (const auto& entry : entries_) {
    if (entry && entry->num_present > 0) pending.push_back(entry.get());
  }
  std::sort(pending.begin(), pending.end(),
            [](const LedgerEntry* a, const LedgerEntry* b) { return a->since < b->since; });
  return pending;
}

}  // namespace kadril
