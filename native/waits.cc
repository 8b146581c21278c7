#include "waits.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "arena.h"
#include "call.h"
#include "channel.h"

namespace kadril {
namespace {

struct Wait {
  WaitTarget target;
  bool is_submitter;
  std::string text;
  std::vector<int> late;  // ranks that it is for
};

struct RankView {
  uint64_t version = 0;
  int name = -1;
  std::vector<Wait> waits;
  bool is_blocked = false;
};

WaitTarget target_of(const SharedWait& shared) {
  WaitTarget target;
  target.board = shared.board.load();
  target.kind = shared.kind.load();
  target.count = shared.count.load();
  target.num_members = shared.num_members.load();
  target.me = shared.me.load();
  for (size_t i = 0; i < target.missing.size(); ++i) target.missing[i] = shared.missing[i].load();
  return target;
}

// Whether a rank is blocked, and still in this version.
bool is_blocked_in(const RankWaits& shared, uint64_t version) {
  return shared.confirmed.load() == version && shared.version.load() == version;
}

// Consistent in itself, or not blocked. All accesses are sequentially consistent, here and where a
// rank writes: nobody comes here but after a long wait.
RankView look_at(const RankWaits& shared) {
  RankView view;
  view.version = shared.version.load();
  if (view.version % 2) return view;
  view.name = shared.name.load();
  for (const SharedWait& wait : shared.waits) {
    if (wait.board.load() == 0) continue;
    view.waits.push_back({target_of(wait), wait.is_submitter.load() != 0, wait.text.read(), {}});
  }
  view.is_blocked = !view.waits.empty() && is_blocked_in(shared, view.version);
  return view;
}

bool is_for_one_of(const Wait& wait, const std::vector<RankView>& ranks) {
  return std::any_of(wait.late.begin(), wait.late.end(),
                     [&](int rank) { return ranks[static_cast<size_t>(rank)].is_blocked; });
}

// Strike out those who wait for somebody who may still come.
void strike_out(std::vector<RankView>& ranks) {
  bool has_changed = true;
  while (has_changed) {
    has_changed = false;
    for (RankView& rank : ranks) {
      if (!rank.is_blocked) continue;
      if (std::all_of(rank.waits.begin(), rank.waits.end(),
                      [&](const Wait& wait) { return is_for_one_of(wait, ranks); })) {
        continue;
      }
      rank.is_blocked = false;
      has_changed = true;
    }
  }
}

// Strike out those who wait for each other within one process set, if its engine may find that out:
// no member waits elsewhere for ever.
void leave_to_engine(std::vector<RankView>& ranks, const Arena& arena, const WaitTarget& set) {
  const auto waits_within = [&](const RankView& rank) {
    return std::all_of(rank.waits.begin(), rank.waits.end(), [&](const Wait& wait) {
      return wait.target.board == set.board && wait.target.kind != WaitKind::meeting;
    });
  };
  for (const int member : Channel::ranks_of(arena, set.board, set.num_members)) {
    if (member < 0) continue;
    const RankView& rank = ranks[static_cast<size_t>(member)];
    if (rank.is_blocked && !waits_within(rank)) return;
  }
  std::vector<RankView> alone = ranks;
  for (RankView& rank : alone) rank.is_blocked &= waits_within(rank);
  strike_out(alone);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (alone[rank].is_blocked) ranks[rank].is_blocked = false;
  }
}

void leave_to_engines(std::vector<RankView>& ranks, const Arena& arena) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].is_blocked) continue;
    const WaitTarget set = ranks[rank].waits.front().target;
    if (set.kind != WaitKind::meeting) leave_to_engine(ranks, arena, set);
  }
  strike_out(ranks);
}

std::string line_of(const RankView& rank, const Wait& wait, const std::vector<RankView>& ranks) {
  std::string whom;
  int num_named = 0;
  for (const int late : wait.late) {
    const RankView& other = ranks[static_cast<size_t>(late)];
    if (!other.is_blocked) continue;
    if (++num_named <= 4) whom += (num_named > 1 ? ", " : "") + std::to_string(other.name);
  }
  if (num_named > 4) whom += " and " + std::to_string(num_named - 4) + " more";
  return "rank " + std::to_string(rank.name) + " waits for rank" + (num_named > 1 ? "s " : " ") +
         whom + " in " + wait.text;
}

}  // namespace

template <size_t num_bytes>
void SharedText<num_bytes>::write(const std::string& text) {
  char bytes[num_bytes] = {};
  const size_t length = whole_letters(text, num_bytes - 1);
  std::memcpy(bytes, text.data(), length);
  for (size_t i = 0; i < words_.size(); ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + 8 * i, 8);
    words_[i].store(word);
    if (8 * i > length) break;  // the zero that ends it is written
  }
}

template <size_t num_bytes>
std::string SharedText<num_bytes>::read() const {
  std::string text;
  for (const auto& each : words_) {
    char bytes[8];
    const uint64_t word = each.load();
    std::memcpy(bytes, &word, 8);
    text.append(bytes, strnlen(bytes, 8));
    if (strnlen(bytes, 8) < 8) break;
  }
  return text;
}

bool QuietEngines::are_still() const {
  return std::all_of(seen_.begin(), seen_.end(),
                     [](const Seen& each) { return each.activity->load() == each.value; });
}

RankWaits& Waits::mine() const { return arena_.waits(rank_); }

int Waits::enter(const WaitTarget& target, const Standpoint& standpoint) {
  const std::lock_guard lock(arena_.waits_mutex());
  RankWaits& shared = mine();
  for (int place = 0; place < max_waits; ++place) {
    SharedWait& wait = shared.waits[place];
    if (wait.board.load() != 0) continue;
    shared.version.fetch_add(1);
    shared.name.store(standpoint.name);
    wait.kind.store(target.kind);
    wait.count.store(target.count);
    wait.num_members.store(target.num_members);
    wait.me.store(target.me);
    for (size_t i = 0; i < target.missing.size(); ++i) wait.missing[i].store(target.missing[i]);
    wait.is_submitter.store(standpoint.is_submitter);
    wait.text.write(standpoint.text);
    wait.board.store(target.board);
    shared.version.fetch_add(1);
    return place;
  }
  return -1;
}

void Waits::leave(int place) {
  if (place < 0) return;
  const std::lock_guard lock(arena_.waits_mutex());
  RankWaits& shared = mine();
  shared.version.fetch_add(1);
  shared.waits[place].board.store(0);
  shared.version.fetch_add(1);
}

uint64_t Waits::version() const { return mine().version.load(); }

void Waits::confirm(uint64_t version, const Standpoint& standpoint) {
  const std::lock_guard lock(arena_.waits_mutex());
  RankWaits& shared = mine();
  if (shared.version.load() != version) return;  // counted for what is no more
  int num_waits = 0, num_submitters = 0;
  for (const SharedWait& wait : shared.waits) {
    if (wait.board.load() == 0) continue;
    ++num_waits;
    num_submitters += wait.is_submitter.load() != 0;
  }
  const bool all_wait =
      num_waits == standpoint.num_threads && num_submitters == standpoint.num_submitters;
  // Version 0 is that of a rank that has never waited.
  shared.confirmed.store(all_wait ? version : 0);
}

Deadlock Waits::find() const {
  const int num_ranks = arena_.num_ranks();
  std::vector<RankView> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) ranks.push_back(look_at(arena_.waits(rank)));
  QuietEngines quiet;
  for (RankView& rank : ranks) {
    if (!rank.is_blocked) continue;
    for (Wait& wait : rank.waits) wait.late = Channel::late_ranks(arena_, wait.target, quiet);
  }
  strike_out(ranks);
  leave_to_engines(ranks, arena_);
  Deadlock found;
  if (!ranks[static_cast<size_t>(rank_)].is_blocked) return found;
  // Unchanged since the first look: all of this was so at one moment in between.
  if (!quiet.are_still()) return found;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const RankView& view = ranks[static_cast<size_t>(rank)];
    if (!view.is_blocked) continue;
    if (!is_blocked_in(arena_.waits(rank), view.version)) return {};
    const uint64_t part[] = {static_cast<uint64_t>(rank), view.version};
    found.digest = hash_bytes(part, sizeof part, found.digest) | 1;
    for (const Wait& wait : view.waits) {
      found.lines.push_back(line_of(view, wait, ranks));
      found.boards.push_back({wait.target.board, wait.target.num_members});
    }
  }
  std::sort(found.boards.begin(), found.boards.end());
  found.boards.erase(std::unique(found.boards.begin(), found.boards.end()), found.boards.end());
  return found;
}

void Waits::publish(const Deadlock& deadlock) {
  std::string text;
  for (const std::string& line : deadlock.lines) text += line + "\n";
  const std::lock_guard lock(arena_.waits_mutex());
  mine().verdict.write(text);
}

std::vector<std::string> Waits::read_verdict(const Arena& arena, int rank) {
  std::vector<std::string> lines;
  if (rank < 0 || rank >= arena.num_ranks()) return lines;
  const std::string text = arena.waits(rank).verdict.read();
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> Waits::read_waits(const Arena& arena, int rank) {
  std::vector<std::string> texts;
  for (const Wait& wait : look_at(arena.waits(rank)).waits) texts.push_back(wait.text);
  return texts;
}

}  // namespace kadril
