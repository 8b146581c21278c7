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
  Deadlock::Place place;
  uint32_t num_posts, me;
  std::string text;
  std::vector<int> late;  // ranks that it is for
};

struct RankView {
  uint64_t version = 0;
  int name = -1;
  std::vector<Wait> waits;
  bool is_blocked = false;
};

// Consistent in itself, or not blocked. All accesses are sequentially consistent, here and where a
// rank writes: nobody comes here but after a long wait.
RankView look_at(const RankWaits& shared) {
  RankView view;
  view.version = shared.version.load();
  if (view.version % 2) return view;
  view.name = shared.name.load();
  const uint32_t num_threads = shared.num_threads.load();
  for (const SharedWait& wait : shared.waits) {
    const uint64_t board = wait.board.load();
    if (board == 0) continue;
    view.waits.push_back({{board, wait.num_members.load()},
                          wait.num_posts.load(),
                          wait.me.load(),
                          wait.text.read(),
                          {}});
  }
  view.is_blocked = !view.waits.empty() && view.waits.size() == num_threads &&
                    shared.version.load() == view.version;
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

RankWaits& Waits::mine() const { return arena_.waits(rank_); }

int Waits::enter(uint64_t board, uint32_t num_members, uint32_t me, uint32_t num_posts,
                 const Standpoint& standpoint) {
  const std::lock_guard lock(arena_.waits_mutex());
  RankWaits& shared = mine();
  for (int place = 0; place < max_waits; ++place) {
    SharedWait& wait = shared.waits[place];
    if (wait.board.load() != 0) continue;
    shared.version.fetch_add(1);
    shared.num_threads.store(static_cast<uint32_t>(standpoint.num_threads));
    shared.name.store(standpoint.name);
    wait.num_posts.store(num_posts);
    wait.num_members.store(num_members);
    wait.me.store(me);
    wait.text.write(standpoint.text);
    wait.board.store(board);
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

void Waits::recount(int num_threads) {
  const std::lock_guard lock(arena_.waits_mutex());
  RankWaits& shared = mine();
  const auto count = static_cast<uint32_t>(num_threads);
  if (shared.num_threads.load() == count) return;
  shared.version.fetch_add(1);
  shared.num_threads.store(count);
  shared.version.fetch_add(1);
}

Deadlock Waits::find() const {
  const int num_ranks = arena_.num_ranks();
  std::vector<RankView> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) ranks.push_back(look_at(arena_.waits(rank)));
  for (RankView& rank : ranks) {
    if (!rank.is_blocked) continue;
    for (Wait& wait : rank.waits) {
      wait.late = Channel::late_ranks(arena_, wait.place.board, wait.place.num_members, wait.me,
                                      wait.num_posts);
    }
  }
  strike_out(ranks);
  Deadlock found;
  if (!ranks[static_cast<size_t>(rank_)].is_blocked) return found;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const RankView& view = ranks[static_cast<size_t>(rank)];
    if (!view.is_blocked) continue;
    // Unchanged since the first look: all of them were blocked at one moment in between.
    if (arena_.waits(rank).version.load() != view.version) return {};
    const uint64_t part[] = {static_cast<uint64_t>(rank), view.version};
    found.digest = hash_bytes(part, sizeof part, found.digest) | 1;
    for (const Wait& wait : view.waits) {
      found.lines.push_back(line_of(view, wait, ranks));
      found.boards.push_back(wait.place);
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
