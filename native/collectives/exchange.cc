// Exchange: each member sends to and receives from any members in one call.
//
// At the first meeting every member posts a table of its messages, so that all members can check
// all pairs. By then it has also laid open what it gives, if that is not much: in the posting
// itself, or in memory of its own that is filled early. Otherwise there are further meetings. A
// member's staging half is cut into as many stripes as it has messages; in each round every stripe
// moves on:
//
//     half:  | stripe 0: next slice of message 0 | stripe 1: next slice of message 1 | ... |
//
// A planned exchange has a premise: what all members say of themselves when they post. It stands
// before the messages in the payload, after a hash of what the member has planned for, so that all
// members decide alike whether to go on.
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "collectives.h"
#include "visit.h"

namespace kadril {
namespace {

class Exchange {
 public:
  Exchange(Visit& visit, std::span<const Outgoing> sends, std::span<const Incoming> recvs,
           Premise* premise = nullptr, const std::function<void()>* meanwhile = nullptr)
      : visit_(visit), sends_(sends), recvs_(recvs), premise_(premise), meanwhile_(meanwhile) {}

  Error run() {
    if (auto error = visit_.enter()) return error;
    post_table();
    visit_.announce();
    if (is_laid_open(visit_.me())) work_meanwhile();
    if (auto error = visit_.confirm()) return error;
    if (premise_ && !premise_holds()) return visit_.leave();
    if (auto error = match()) return error;
    copy_to_myself();
    if (!all_can_be_read()) {
      if (auto error = visit_.provide_staging()) return error;
      return staged();
    }
    work_meanwhile();
    receive();
    visit_.hit(Phase::mid_reduce);
    visit_.hit(Phase::reduced);
    if (!all_laid_open()) {  // what others read in place may change when they have
      if (auto error = visit_.meet()) return error;
    }
    return visit_.leave();
  }

 private:
  bool stays_here(int peer) const { return peer == visit_.me(); }

  // Once, at the first moment when others need nothing from this member.
  void work_meanwhile() {
    if (meanwhile_) (*meanwhile_)();
    meanwhile_ = nullptr;
  }

  uint64_t premise_bytes() const { return premise_ ? sizeof(uint64_t) + premise_->mine.size() : 0; }

  // Where messages begin in what is laid open: behind the premise, in whole cache lines.
  uint64_t messages_begin() const { return (premise_bytes() + 63) / 64 * 64; }

  void post_premise() {
    const uint64_t plan = hash_bytes(premise_->planned.data(), premise_->planned.size(), 3);
    std::byte* payload = visit_.mine().payload;
    std::memcpy(payload, &plan, sizeof plan);
    std::memcpy(payload + sizeof plan, premise_->mine.data(), premise_->mine.size());
  }

  bool premise_holds() {
    std::vector<std::byte>& found = premise_->found;
    bool same_plan = true;
    for (int m = 0; m < visit_.size(); ++m) {
      const std::byte* payload = visit_.posting(m).payload;
      same_plan &= std::memcmp(payload, visit_.posting(0).payload, sizeof(uint64_t)) == 0;
      found.insert(found.end(), payload + sizeof(uint64_t), payload + premise_bytes());
    }
    const auto planned = premise_->planned;
    if (!same_plan || !std::equal(found.begin(), found.end(), planned.begin(), planned.end())) {
      return false;
    }
    found.clear();
    return true;
  }

  void post_table() {
    std::span<Entry> table = visit_.my_table();
    uint64_t total = messages_begin();
    uint16_t stripe = 0;
    bool is_shared = true;
    for (size_t i = 0; i < sends_.size(); ++i) {
      const Outgoing& send = sends_[i];
      const bool leaves = !stays_here(send.peer);
      table[i] = {send.peer, stripe, send.dtype, send.bytes, offset_of(send), total};
      if (leaves) {
        ++stripe;
        total += send.bytes;
        is_shared = is_shared && table[i].memory != no_offset;
      }
    }
    for (size_t i = 0; i < recvs_.size(); ++i) {
      table[sends_.size() + i] = {recvs_[i].peer,  0,         recvs_[i].dtype,
                                  recvs_[i].bytes, no_offset, 0};
    }
    Posting& mine = visit_.mine();
    mine.num_sends = static_cast<uint32_t>(sends_.size());
    mine.num_recvs = static_cast<uint32_t>(recvs_.size());
    const bool gives = total > messages_begin();
    visit_.prepare({nullptr, nullptr, 0, 0, gives ? total : 0});
    if (premise_) post_premise();
    if (!gives) return;
    if (!mine.inlined && !is_shared && total <= chunk_bytes) mine.early = visit_.early_half();
    if (is_laid_open(visit_.me())) lay_open(table);
    visit_.hit(Phase::mid_copy);
  }

  void lay_open(std::span<const Entry> table) {
    Posting& mine = visit_.mine();
    std::byte* place = mine.inlined ? mine.payload : visit_.arena().at(mine.early);
    for (size_t i = 0; i < sends_.size(); ++i) {
      if (stays_here(sends_[i].peer) || sends_[i].bytes == 0) continue;
      read(sends_[i], place + table[i].position, 0, sends_[i].bytes);
    }
  }

  // Whether all that a member gives lies where its peers can read it after the first meeting, and
  // stays there until the call after the next.
  bool is_laid_open(int member) const {
    return visit_.posting(member).inlined || visit_.posting(member).early != no_offset;
  }

  const std::byte* laid_open(int member) const {
    const Posting& posting = visit_.posting(member);
    return posting.inlined ? posting.payload : visit_.arena().at(posting.early);
  }

  bool all_laid_open() const {
    for (int m = 0; m < visit_.size(); ++m) {
      if (!is_laid_open(m)) return false;
    }
    return true;
  }

  // Peers read memory that is shared by themselves, if it is one run.
  uint64_t offset_of(const Outgoing& send) const {
    if (send.bytes == 0) return 0;
    return send.runs.is_contiguous() ? visit_.arena().offset_of(send.memory, send.bytes)
                                     : no_offset;
  }

  // Pair the receives of every member with the sends to it; `matches_` keeps those of this member.
  Error match() {
    bool equal = true;
    std::vector<size_t> next(static_cast<size_t>(visit_.size()));
    for (int receiver = 0; receiver < visit_.size(); ++receiver) {
      std::fill(next.begin(), next.end(), 0);
      for (const Entry& recv : visit_.recvs(receiver)) {
        const Entry* send = next_send(recv.peer, receiver, next[static_cast<size_t>(recv.peer)]);
        equal = equal && send && send->bytes == recv.bytes && send->dtype == recv.dtype;
        if (receiver == visit_.me()) matches_.push_back(send);
      }
      for (int sender = 0; equal && sender < visit_.size(); ++sender) {
        equal = !next_send(sender, receiver, next[static_cast<size_t>(sender)]);
      }
    }
    return equal ? nullptr : mismatch();
  }

  // The first send of `sender` to `receiver` at or behind `position`, which moves behind it.
  const Entry* next_send(int sender, int receiver, size_t& position) const {
    const auto sends = visit_.sends(sender);
    while (position < sends.size()) {
      const Entry& send = sends[position++];
      if (send.peer == receiver) return &send;
    }
    return nullptr;
  }

  Error mismatch() const {
    auto error = fail(Reason::mismatch);
    const auto list = [](std::string text, std::span<const Entry> entries, const char* arrow) {
      for (const Entry& entry : entries) {
        text += std::string(text.back() == ' ' ? "" : ", ") + name_of(entry.dtype) + "[" +
                std::to_string(entry.bytes / size_of(entry.dtype)) + "] " + arrow + " " +
                std::to_string(entry.peer);
      }
      return entries.empty() ? text + "nothing" : text;
    };
    for (int m = 0; m < visit_.size(); ++m) {
      error->calls.push_back(visit_.posting(m).call.text() +
                             list(" sends ", visit_.sends(m), "to") +
                             list("; receives ", visit_.recvs(m), "from"));
    }
    return error;
  }

  void copy_to_myself() {
    auto own = sends_.begin();
    for (const Incoming& recv : recvs_) {
      if (!stays_here(recv.peer)) continue;
      own = std::find_if(own, sends_.end(), [&](const Outgoing& s) { return stays_here(s.peer); });
      if (recv.bytes > 0) copy_own(*own, recv);
      ++own;
    }
  }

  static void copy_own(const Outgoing& send, const Incoming& recv) {
    if (send.runs.is_contiguous()) {
      write(recv, static_cast<const std::byte*>(send.memory), 0, recv.bytes);
      return;
    }
    std::vector<std::byte> packed(send.bytes);
    read(send, packed.data(), 0, send.bytes);
    write(recv, packed.data(), 0, recv.bytes);
  }

  static void read(const Outgoing& send, std::byte* target, uint64_t begin, uint64_t bytes) {
    send.runs.read(target, static_cast<const std::byte*>(send.memory), begin, bytes);
  }

  static void write(const Incoming& recv, const std::byte* source, uint64_t begin, uint64_t bytes) {
    recv.runs.write(static_cast<std::byte*>(recv.memory), source, begin, bytes);
  }

  // Whether everything is laid open or lies in shared memory.
  bool all_can_be_read() const {
    for (int m = 0; m < visit_.size(); ++m) {
      if (is_laid_open(m)) continue;
      for (const Entry& send : visit_.sends(m)) {
        if (send.peer != m && send.memory == no_offset) return false;
      }
    }
    return true;
  }

  void receive() {
    for (size_t i = 0; i < recvs_.size(); ++i) {
      const Incoming& recv = recvs_[i];
      if (stays_here(recv.peer) || recv.bytes == 0) continue;
      const Entry& entry = *matches_[i];
      write(recv,
            is_laid_open(recv.peer) ? laid_open(recv.peer) + entry.position
                                    : visit_.arena().at(entry.memory),
            0, recv.bytes);
    }
  }

  // Bytes of one stripe of a member's half, in whole cache lines.
  uint64_t stripe_bytes(int member) const {
    uint64_t num_stripes = 0;
    for (const Entry& send : visit_.sends(member)) num_stripes += send.peer != member;
    return num_stripes ? chunk_bytes / num_stripes / 64 * 64 : chunk_bytes;
  }

  Error staged() {
    std::vector<uint64_t> stripes(static_cast<size_t>(visit_.size()));
    uint64_t num_rounds = 0;
    for (int m = 0; m < visit_.size(); ++m) {
      stripes[m] = stripe_bytes(m);
      for (const Entry& send : visit_.sends(m)) {
        if (send.peer != m)
          num_rounds = std::max(num_rounds, (send.bytes + stripes[m] - 1) / stripes[m]);
      }
    }
    for (uint64_t round = 0; round < num_rounds; ++round) {
      fill(round, stripes[visit_.me()]);
      visit_.hit(Phase::mid_copy);
      visit_.post();
      if (round == 0) work_meanwhile();
      if (auto error = visit_.await_all()) return error;
      drain(round, stripes);
      visit_.hit(Phase::mid_reduce);
    }
    visit_.hit(Phase::reduced);
    return visit_.leave();
  }

  void fill(uint64_t round, uint64_t stripe) {
    const auto table = visit_.sends(visit_.me());
    const uint64_t begin = round * stripe;
    for (size_t i = 0; i < sends_.size(); ++i) {
      if (stays_here(sends_[i].peer) || begin >= sends_[i].bytes) continue;
      read(sends_[i], staging_half(visit_, visit_.me(), round) + table[i].stripe * stripe, begin,
           std::min(stripe, sends_[i].bytes - begin));
    }
  }

  void drain(uint64_t round, const std::vector<uint64_t>& stripes) {
    for (size_t i = 0; i < recvs_.size(); ++i) {
      const Incoming& recv = recvs_[i];
      const uint64_t stripe = stripes[static_cast<size_t>(recv.peer)];
      const uint64_t begin = round * stripe;
      if (stays_here(recv.peer) || begin >= recv.bytes) continue;
      write(recv, staging_half(visit_, recv.peer, round) + matches_[i]->stripe * stripe, begin,
            std::min(stripe, recv.bytes - begin));
    }
  }

  Visit& visit_;
  std::span<const Outgoing> sends_;
  std::span<const Incoming> recvs_;
  Premise* premise_;
  const std::function<void()>* meanwhile_;
  std::vector<const Entry*> matches_;  // the send behind each of our receives
};

Error check_table(const Channel& channel, size_t num_messages) {
  const auto most = static_cast<size_t>(Channel::table_capacity(channel.num_members()));
  if (num_messages <= most) return nullptr;
  return fail(Reason::invalid,
              "too many messages in one exchange: " + std::to_string(num_messages) + ", at most " +
                  std::to_string(most));
}

}  // namespace

Error exchange(Channel& channel, Call call, std::span<const Outgoing> sends,
               std::span<const Incoming> recvs) {
  if (call.kind != Kind::alltoallv) call.kind = Kind::exchange;  // alltoallv.cc comes here too
  if (auto error = check_table(channel, sends.size() + recvs.size())) return error;
  Visit visit(channel, call);
  return Exchange(visit, sends, recvs).run();
}

Error exchange_planned(Channel& channel, Call call, std::span<const Outgoing> sends,
                       std::span<const Incoming> recvs, Premise& premise,
                       const std::function<void()>& meanwhile) {
  call.kind = Kind::exchange;
  const uint64_t length = sizeof(uint64_t) + premise.mine.size();
  if (length > inline_bytes) return fail(Reason::invalid, "a premise too long for a posting");
  if (auto error = check_table(channel, sends.size() + recvs.size())) return error;
  call.set_counts({&length, 1});
  Visit visit(channel, call);
  return Exchange(visit, sends, recvs, &premise, &meanwhile).run();
}

}  // namespace kadril
