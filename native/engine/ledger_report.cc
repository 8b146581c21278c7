// What the ledger tells people: which requests wait for whom, and names that clash.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "engine/ledger.h"

namespace kadril {
namespace {

std::string seconds_text(Clock::time_point from, Clock::time_point to) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", std::chrono::duration<double>(to - from).count());
  return text;
}

// A member that asks for the first and not for the second; -1 where there is none.
int member_of_first_only(const LedgerEntry& first, const LedgerEntry& second) {
  for (size_t member = 0; member < first.is_present.size(); ++member) {
    if (first.is_present[member] && !second.is_present[member]) return static_cast<int>(member);
  }
  return -1;
}

}  // namespace

std::vector<std::string> Ledger::describe_name_clashes(std::span<const int> world_ranks) const {
  std::map<std::string, std::vector<const LedgerEntry*>> by_name;
  for (const LedgerEntry* entry : pending()) {
    by_name[Descriptor::name_in_key(entry->key)].push_back(entry);
  }
  std::vector<std::string> lines;
  for (const auto& [name, entries] : by_name) {
    for (size_t later = 1; later < entries.size(); ++later) {
      const LedgerEntry& a = *entries[later - 1];
      const LedgerEntry& b = *entries[later];
      const int only_a = member_of_first_only(a, b);
      const int only_b = member_of_first_only(b, a);
      if (only_a < 0 || only_b < 0) continue;
      // Un-named requests are counted apart for each kind.
      if (!a.said[static_cast<size_t>(only_a)].is_named) continue;
      const auto told_by = [&](const LedgerEntry& entry, int member) {
        const auto index = static_cast<size_t>(member);
        return "rank " + std::to_string(world_ranks[index]) + " asks for " +
               entry.said[index].text_with_site();
      };
      lines.push_back(told_by(a, only_a) + ", but " + told_by(b, only_b));
    }
  }
  return lines;
}

std::vector<std::string> Ledger::describe_pending(std::span<const int> world_ranks,
                                                  Clock::time_point now) const {
  std::vector<std::string> lines;
  const auto add_untold = [&](const Request& request) {
    lines.push_back(request.descriptor.text_with_site() + ": asked for by rank " +
                    std::to_string(world_ranks[static_cast<size_t>(me_)]) + " for " +
                    seconds_text(request.submitted, now) + " s");
  };
  for (const auto& request : sent_) {
    if (request) add_untold(*request);
  }
  for (const auto& entry : entries_) {
    if (entry && entry->mine && entry->num_present == 0) add_untold(*entry->mine);
  }
  for (const LedgerEntry* entry : pending()) {
    std::string missing, present;
    const Descriptor* any = nullptr;
    for (size_t member = 0; member < joined_.size(); ++member) {
      const bool is_here = entry->is_present[member];
      if (is_here) any = &entry->said[member];
      if (!is_here && joined_[member]) continue;
      std::string& list = is_here ? present : missing;
      list += (list.empty() ? "" : ", ") + std::to_string(world_ranks[member]);
    }
    lines.push_back(any->text_with_site() + ": asked for by rank(s) " + present + " for " +
                    seconds_text(entry->since, now) + " s, not by rank(s) " + missing);
  }
  return lines;
}

}  // namespace kadril
