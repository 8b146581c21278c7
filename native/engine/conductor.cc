#include "engine/conductor.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "channel.h"
#include "engine/quiet_thread.h"
#include "recorder.h"

namespace kadril {
namespace {

constexpr double first_pause = 0.0005;
constexpr double longest_pause = 0.1;
constexpr double for_ever = 3600;
constexpr double linger_seconds = 50e-6;
constexpr double clash_warning = 1.0;
constexpr size_t max_reported = 8;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// memcpy does not take the null pointer of an empty vector.
void copy_bytes(std::byte* target, const std::byte* source, uint64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, bytes);
}

Call control_call() {
  Call call;
  call.dtype = DType::uint8;
  call.set_name("engine");
  return call;
}

// A request fails with its own words: the engine's own talk, and how many calls it has made for that,
// mean nothing to its caller.
void tell_of_request(Failure& failure, const Request& request) {
  const bool is_of_several =
      failure.reason == Reason::peer_lost || failure.reason == Reason::peer_left ||
      failure.reason == Reason::stalled || failure.reason == Reason::revoked ||
      failure.reason == Reason::deadlock;
  if (is_of_several) {
    failure.detail = request.descriptor.text();
    failure.elapsed = seconds_between(request.submitted, Clock::now());
    failure.num_common = 0;
    failure.last_common.clear();
  } else if (failure.reason == Reason::closed) {
    failure.detail = request.descriptor.text() + ": " + failure.detail;
  } else if (failure.reason == Reason::foreign) {
    failure.detail = request.descriptor.text();
  }
}

void fail_request(Request& request, const Failure& failure) {
  auto own = std::make_shared<Failure>(failure);
  tell_of_request(*own, request);
  request.completion->finish(std::move(own));
  request.completion->wake();
}

}  // namespace

Conductor::Conductor(std::unique_ptr<Lane> lane, ConductorOptions options, Reporter report)
    : options_(std::move(options)),
      report_(std::move(report)),
      lane_(std::move(lane)),
      waiters_(std::make_shared<Waiters>(*lane_, options_.submitters)),
      ledger_(lane_->size(), lane_->me(), options_.cache_capacity),
      executor_(*lane_, options_.fusion, [this](Request& request) { forget_name(request); }),
      waiting_since_(Clock::now()),
      messages_(static_cast<size_t>(lane_->size())) {
  lane_->set_late_hook([this](const std::vector<int>& members, bool stopped, double elapsed) {
    report_late(members, stopped, elapsed);
  });
  thread_ = start_quiet_thread([this] { run(); });
}

Conductor::~Conductor() {
  if (fork_mark_.is_in_child()) {
    thread_.detach();  // it is the parent's
    static_cast<void>(lane_.release());
    return;
  }
  close();
}

bool Conductor::is_large(const Request& request) const {
  const auto& pieces = request.descriptor.pieces;
  return std::any_of(pieces.begin(), pieces.end(), [this](const Piece& piece) {
    return piece.bytes() > options_.fusion.largest_piece;
  });
}

Error Conductor::submit(std::unique_ptr<Request> request) {
  if (fork_mark_.is_in_child()) return fail(Reason::forked);
  Submitters::add_this_thread(options_.submitters);
  std::string key = request->descriptor.key();
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return fail_late(*request);
    if (is_closing_) return fail(Reason::closed);
    if (!in_flight_.insert(std::move(key)).second) {
      return fail(Reason::invalid, "the name is in use: " + request->descriptor.text() +
                                       " was asked for while an earlier one of that name is under"
                                       " way; wait for it, or use another name");
    }
    request->completion->waiters = waiters_;
    request->completion->key = request->descriptor.key();
    request->completion->stamp = request->descriptor.stamp;
    request->completion->brief = request->descriptor.brief();
    if (request->completion->callback) options_.submitters->add_callback();
    request->completion->record =
        Recorder::begin(request->descriptor.call(), reinterpret_cast<uintptr_t>(this), 0,
                        static_cast<uint32_t>(lane_->size()));
    stir();
    if (is_large(*request)) has_large_mail_.store(true);
    inbox_.push_back(std::move(request));
    if (has_mail_.exchange(true)) return nullptr;  // the bell rang for the one before
  }
  lane_->bell().ring();
  return nullptr;
}

// A request that comes after the set has ended. The caller holds the mutex.
Error Conductor::fail_late(const Request& request) {
  auto error = std::make_unique<Failure>(*failure_);
  const double elapsed = error->elapsed;
  if (error->reason != Reason::closed && error->reason != Reason::foreign) {
    tell_of_request(*error, request);
    error->elapsed = elapsed;  // of the wait by which it ended
  }
  return error;
}

void Conductor::cancel(const std::shared_ptr<Completion>& completion) {
  if (fork_mark_.is_in_child()) return;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || is_closing_ || completion->is_done()) return;
    in_flight_.erase(completion->key);
    cancelled_.push_back({completion, eras_.next_step()});
    stir();
    has_mail_.store(true);
  }
  lane_->bell().ring();
}

void Conductor::close() {
  if (fork_mark_.is_in_child()) return;
  {
    const std::lock_guard lock(mutex_);
    if (is_closing_.exchange(true)) return;
  }
  waiters_->dismiss();
  lane_->bell().ring();
  // It may be in a call that waits for others: most often it is not, and gets a moment to see.
  for (int i = 0; !has_ended_.load(); ++i) {
    if (i > 0) lane_->leave_call();
    std::this_thread::sleep_for(std::chrono::microseconds(i < 10 ? 50 : 1000));
  }
  thread_.join();
  lane_->close();
}

void Conductor::run() noexcept {
  const Recorder::Pause unrecorded;  // requests are, by those who make them
  const std::shared_ptr<void> held = lane_->enter();
  std::shared_ptr<const Failure> failure;
  try {
    while (await_work()) {
      if (auto error = cycle()) {
        failure = std::move(error);
        break;
      }
    }
  } catch (const std::exception& error) {
    failure = fail(Reason::closed, std::string("the engine ran into: ") + error.what());
  }
  if (is_closing_ || !failure) {
    failure = fail(Reason::closed, "the engine was shut down while requests were under way");
  }
  fail_all(std::move(failure));
  if (auto events = timeline()) events->write();
  // A set that has ended by itself is of no use to the others either.
  if (!is_closing_) lane_->close();
  has_ended_.store(true);
}

// Takes from the inbox the requests that were cancelled before the others heard of them, who never
// will. Of cancelled requests of a step they are told all the same, since theirs will not be met.
// The caller holds the mutex.
std::vector<std::unique_ptr<Request>> Conductor::take_untold() {
  std::vector<std::unique_ptr<Request>> requests;
  for (auto& request : inbox_) {
    const auto found = find_cancelled(*request);
    if (found == cancelled_.end()) continue;
    end_era_of(*found);
    cancelled_.erase(found);
    const Descriptor& asked = request->descriptor;
    if (asked.stamp.era > 0) untold_.push_back({asked.key(), eras_.renewed(asked.stamp)});
    requests.push_back(std::move(request));
  }
  std::erase(inbox_, nullptr);
  return requests;
}

// The caller holds the mutex.
std::vector<Conductor::Cancellation>::iterator Conductor::find_cancelled(const Request& request) {
  return std::find_if(cancelled_.begin(), cancelled_.end(), [&](const Cancellation& each) {
    return each.completion == request.completion;
  });
}

// The cancellation has come in time: steps that began after it are of the next era.
void Conductor::end_era_of(const Cancellation& cancellation) {
  const Stamp ended = eras_.renewed(cancellation.completion->stamp);
  if (ended.era == 0) return;
  eras_.promote({cancellation.next_step, ended.era + 1});
  eras_.advance_to(ended.era + 1);
}

// Whether there is something to tell the others.
bool Conductor::has_mail() {
  if (!has_mail_.load()) return false;
  std::vector<std::unique_ptr<Request>> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = take_untold();
    has_mail_.store(!inbox_.empty() || !cancelled_.empty() || !untold_.empty());
  }
  end_cancelled(ended);
  return has_mail_.load();
}

// Tells those who look for deadlocks that there is nothing to tell the others, where that is so.
uint64_t Conductor::become_quiet(bool has_pending) {
  const std::lock_guard lock(mutex_);
  const bool has_mail = !inbox_.empty() || !cancelled_.empty() || !untold_.empty();
  if (Activity::is_quiet(activity_) || has_mail || failure_ || is_closing_) return activity_;
  const auto num_cycles = static_cast<uint32_t>(num_cycles_.load());
  activity_ = Activity::quiet(num_cycles, ++num_quiet_times_, has_pending);
  waiters_->set_activity(activity_);
  lane_->show_activity(activity_);
  return activity_;
}

void Conductor::stir() {
  if (!Activity::is_quiet(activity_)) return;
  activity_ &= ~Activity::quiet_bit;
  waiters_->set_activity(activity_);
  lane_->show_activity(activity_);
}

bool Conductor::await_work() {
  Bell& bell = lane_->bell();
  const bool has_pending = ledger_.has_pending();
  const auto cycle = static_cast<uint32_t>(num_cycles_.load()) + 1;
  const auto start = Clock::now();
  if (!has_pending) waiting_since_ = start;
  bell.listen(has_pending);
  while (true) {
    const uint32_t seen = bell.count();
    if (is_closing_) return false;
    if (has_mail()) break;
    if (has_pending && bell.is_asked_for(cycle)) break;
    const uint64_t activity = become_quiet(has_pending);
    const auto now = Clock::now();
    double seconds = for_ever;
    if (has_pending) {
      waiters_->note_missing(activity, [this](const Completion& completion, auto& missing) {
        return ledger_.find_missing(completion, missing);
      });
      if (auto error = check_patience(now)) {
        fail_all(std::move(error));
        return false;
      }
      seconds = seconds_to_sleep(start, now);
      if (seconds <= 0) break;
    }
    bell.wait(seen, seconds);
  }
  {
    const std::lock_guard lock(mutex_);
    stir();
  }
  linger(cycle);
  bell.listen(false);
  return true;
}

// Seconds that a member which waits for others may sleep; not positive where it comes
// to a cycle by itself.
double Conductor::seconds_to_sleep(Clock::time_point start, Clock::time_point now) const {
  if (!lane_->bell().reaches_peers()) return pause_ - seconds_between(start, now);
  double seconds = std::min(1.0, options_.patience);
  if (options_.stall_warning > 0) seconds = std::min(seconds, options_.stall_warning);
  if (has_said_stuck_) return seconds;
  const auto stuck_from = waiters_->stuck_from();
  if (stuck_from == Waiters::no_time) return seconds;
  return std::min(seconds, seconds_between(now, stuck_from));
}

// Waits for more requests, which are likely to come as long as nobody waits for results: a
// cycle for many costs as much as one for the first of them. It yields, since whoever asks may
// need this very core. A large array gains nothing by company, and where all cores compute a
// yield costs milliseconds.
void Conductor::linger(uint32_t cycle) {
  const auto start = Clock::now();
  if (has_large_mail_.load()) return;
  while (waiters_->size() == 0 && !is_closing_ && !lane_->bell().is_asked_for(cycle) &&
         seconds_between(start, Clock::now()) < linger_seconds) {
    sched_yield();
  }
}

// Checks the patience of a member that waits at the bell; inside a cycle the lane has its own.
Error Conductor::check_patience(Clock::time_point now) {
  const double waited = seconds_between(waiting_since_, now);
  if (next_warning_ <= 0) next_warning_ = options_.stall_warning;
  if (options_.stall_warning > 0 && waited >= next_warning_) {
    next_warning_ *= 2;
    report_late({}, false, waited);
  }
  if (options_.stall_warning > 0 && waited >= clash_warning && !has_warned_of_clashes_) {
    has_warned_of_clashes_ = true;
    const auto lines = ledger_.describe_name_clashes(options_.world_ranks);
    if (!lines.empty()) report("ranks use one name for different operations:", lines);
  }
  if (waited < options_.patience) return nullptr;
  Call call = control_call();
  return lane_->give_up_stalled(call, ledger_.first_missing(), waited);
}

void Conductor::report_late(const std::vector<int>& members, bool stopped, double elapsed) {
  if (options_.stall_warning <= 0) return;
  const int me = options_.world_ranks[static_cast<size_t>(lane_->me())];
  std::string text = "rank " + std::to_string(me) + " has waited " +
                     std::to_string(static_cast<int64_t>(elapsed)) + " s";
  if (!members.empty()) {
    text += " for rank(s)";
    for (const int member : members) {
      text += (member == members.front() ? " " : ", ") +
              std::to_string(options_.world_ranks[static_cast<size_t>(member)]);
    }
    if (stopped) text += " (stopped by a signal or a debugger)";
    // What they do in other sets is not known here.
    text += ", which asked for nothing meanwhile among these " + std::to_string(lane_->size()) +
            " ranks:";
  } else {
    text += " for requests that not all ranks have made:";
  }
  report(std::move(text), ledger_.describe_pending(options_.world_ranks, Clock::now()));
}

void Conductor::report(std::string text, const std::vector<std::string>& lines) {
  for (size_t i = 0; i < std::min(lines.size(), max_reported); ++i) text += "\n  " + lines[i];
  if (lines.size() > max_reported) {
    text += "\n  and " + std::to_string(lines.size() - max_reported) + " more";
  }
  report_(text);
}

std::vector<std::byte> Conductor::next_message() {
  std::vector<std::byte> message;
  std::vector<std::unique_ptr<Request>> requests, ended;
  std::vector<Cancellation> cancelled;
  std::vector<Untold> untold;
  {
    const std::lock_guard lock(mutex_);
    has_mail_.store(false);
    has_large_mail_.store(false);
    ended = take_untold();  // what was cancelled since the conductor woke
    requests = std::exchange(inbox_, {});
    cancelled = std::exchange(cancelled_, {});
    untold = std::exchange(untold_, {});
  }
  end_cancelled(ended);
  has_said_stuck_ = false;
  if (!requests.empty() || !cancelled.empty() || !untold.empty()) {
    std::vector<std::shared_ptr<Completion>> withdrawn;
    for (const Cancellation& each : cancelled) {
      if (!ledger_.waits_for(each.completion.get())) continue;
      end_era_of(each);
      withdrawn.push_back(each.completion);
    }
    for (const auto& request : requests) {
      request->descriptor.stamp = eras_.renewed(request->descriptor.stamp);
    }
    ledger_.write(std::move(requests), withdrawn, untold, message);
  } else if (waiters_->stuck_from() <= Clock::now()) {
    ledger_.write_stuck(waiters_->first_blocked_on(), message);
    has_said_stuck_ = !message.empty();
  }
  return message;
}

Error Conductor::cycle() {
  const auto start = Clock::now();
  const std::vector<std::byte> message = next_message();
  lane_->bell().ask_for(static_cast<uint32_t>(num_cycles_.load()) + 1);
  waiters_->set_exchange(num_cycles_.load() + 1);
  auto error = exchange(message, messages_);
  waiters_->set_exchange(0);
  if (error) return error;
  ++num_cycles_;
  std::vector<Agreement> ready;
  if (!ledger_.read(messages_, ready)) {
    auto failed = fail(Reason::closed, "a message of another rank makes no sense");
    fail_unserved(ready, *failed);
    return failed;
  }
  // Before anybody hears that a request has failed.
  eras_.advance_to(ledger_.era());
  eras_.promote(ledger_.promotion());
  end_cancelled(ledger_.take_withdrawn());
  end_stale(ledger_.take_stale());
  const auto events = timeline();
  if (events && marks_cycles_ && ledger_.has_news()) events->add_mark("CYCLE_START", start);
  pause_ = ledger_.has_news() ? first_pause : std::min(longest_pause, 2 * pause_);
  if (ledger_.is_deadlocked()) end_deadlock();
  if (ready.empty()) return nullptr;
  waiting_since_ = Clock::now();
  next_warning_ = 0;
  has_warned_of_clashes_ = false;
  if (auto failed = executor_.run(ready, events.get())) {
    fail_unserved(ready, *failed);
    return failed;
  }
  ledger_.forget_old();
  return nullptr;
}

// Nothing has moved, and all members do this at the same message: the set goes on.
void Conductor::end_deadlock() {
  const Error error = ledger_.describe_deadlock();
  const auto requests = ledger_.dissolve();
  ++num_deadlocks_;
  for (const auto& request : requests) {
    auto own = std::make_shared<Failure>(*error);
    own->calls[static_cast<size_t>(me())] =
        request->descriptor.verb == Verb::join ? "join()" : request->descriptor.text_with_site();
    forget_name(*request);
    request->completion->finish(std::move(own));
  }
  for (const auto& request : requests) request->completion->wake();
  waiting_since_ = Clock::now();
  next_warning_ = 0;
}

// Requests that nobody counts on any more. Their names may be in use again.
void Conductor::end_cancelled(const std::vector<std::unique_ptr<Request>>& requests) {
  for (const auto& request : requests) {
    fail_request(*request, *fail(Reason::cancelled, request->descriptor.text() + " was cancelled"));
  }
}

// Requests of a step that has failed elsewhere.
void Conductor::end_stale(std::vector<Stale> requests) {
  for (Stale& stale : requests) {
    const int rank = options_.world_ranks[static_cast<size_t>(stale.member)];
    forget_name(*stale.mine);
    fail_request(*stale.mine,
                 *fail(Reason::mismatch,
                       "rank " + std::to_string(rank) +
                           " has withdrawn what this rank waits for,"
                           " or gone on to its next step: the step that " +
                           stale.mine->descriptor.text_with_site() + " belongs to has failed there",
                       stale.member));
  }
}

// First a block of each member with the length of its message and as much of it as fits; then, if
// any did not fit, the rest of all.
Error Conductor::exchange(const std::vector<std::byte>& mine,
                          std::vector<std::vector<std::byte>>& all) {
  const auto size = static_cast<size_t>(lane_->size());
  const auto self = static_cast<size_t>(lane_->me());
  const uint64_t block_bytes = lane_->block_bytes();
  const uint64_t room_bytes = block_bytes - sizeof(uint32_t);
  blocks_.resize(size * block_bytes);
  std::byte* own = blocks_.data() + self * block_bytes;
  const auto length = static_cast<uint32_t>(mine.size());
  std::memcpy(own, &length, sizeof length);
  copy_bytes(own + sizeof length, mine.data(), std::min<uint64_t>(room_bytes, mine.size()));
  std::vector<uint64_t> counts(size, block_bytes);
  const Call call = control_call();
  if (auto error = lane_->allgatherv(call, own, blocks_.data(), counts)) return error;
  uint64_t total = 0;
  for (size_t member = 0; member < size; ++member) {
    uint32_t bytes;
    const std::byte* block = blocks_.data() + member * block_bytes;
    std::memcpy(&bytes, block, sizeof bytes);
    all[member].resize(bytes);
    copy_bytes(all[member].data(), block + sizeof bytes, std::min<uint64_t>(room_bytes, bytes));
    total += counts[member] = bytes > room_bytes ? bytes - room_bytes : 0;
  }
  if (total == 0) return nullptr;
  std::vector<std::byte> rests(total);
  const std::byte* own_rest = counts[self] ? mine.data() + room_bytes : rests.data();
  if (auto error = lane_->allgatherv(call, own_rest, rests.data(), counts)) return error;
  uint64_t position = 0;
  for (size_t member = 0; member < size; ++member) {
    if (counts[member] == 0) continue;
    std::memcpy(all[member].data() + room_bytes, rests.data() + position, counts[member]);
    position += counts[member];
  }
  return nullptr;
}

void Conductor::forget_name(Request& request) {
  const std::lock_guard lock(mutex_);
  // One that was cancelled too late to be withdrawn: its name may be another request's by now, of a
  // step that began while its own had not ended for the others.
  const auto found = find_cancelled(request);
  if (found != cancelled_.end()) {
    eras_.promote({found->next_step, ledger_.era()});
    cancelled_.erase(found);
    return;
  }
  in_flight_.erase(request.descriptor.key());
}

void Conductor::fail_unserved(std::vector<Agreement>& agreements, const Failure& failure) {
  for (Agreement& agreement : agreements) {
    if (!agreement.mine || agreement.mine->completion->is_done()) continue;
    forget_name(*agreement.mine);
    fail_request(*agreement.mine, failure);
  }
}

void Conductor::fail_all(std::shared_ptr<const Failure> failure) {
  // Whoever gave up first was waiting for somebody, maybe for this member, which waits in turn.
  if (failure->reason == Reason::stalled && failure->member == me() && ledger_.has_pending()) {
    auto own_view = std::make_shared<Failure>(*failure);
    own_view->member = ledger_.first_missing();
    own_view->late = {own_view->member};
    failure = std::move(own_view);
  }
  std::vector<std::unique_ptr<Request>> requests = ledger_.take_pending();
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    for (auto& request : inbox_) requests.push_back(std::move(request));
    inbox_.clear();
    in_flight_.clear();
  }
  for (const auto& request : requests) fail_request(*request, *failure_);
}

int Conductor::num_in_flight() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(in_flight_.size());
}

std::shared_ptr<Timeline> Conductor::timeline() {
  const std::lock_guard lock(mutex_);
  return timeline_;
}

void Conductor::set_timeline(std::shared_ptr<Timeline> timeline, bool mark_cycles) {
  const std::lock_guard lock(mutex_);
  timeline_ = std::move(timeline);
  marks_cycles_ = mark_cycles;
}

}  // namespace kadril
