// Options, failures told, counts and violations.
#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace metal_double {
namespace {

struct Failure {
  std::string name;  // empty: any creation
  std::uint64_t left;
};

struct Failures {
  std::mutex mutex;
  std::vector<Failure> told;
  std::uint64_t creations = 0;
};

Failures& failures() {
  static auto* const all = new Failures;
  return *all;
}

struct Violations {
  std::mutex mutex;
  std::deque<std::string> texts;
};

Violations& violations() {
  static auto* const all = new Violations;
  return *all;
}

std::atomic<std::uint64_t> nil_messages{0};

bool names(const std::string& name, const std::string& type_name, const std::string& selector) {
  return name == selector || (!type_name.empty() && name == type_name + " " + selector);
}

// Plain allocation does not fail on the systems that have Metal: strings and pools are refused only by name.
bool counts(const std::string& type_name, const std::string& selector) {
  return type_name.empty() ? selector.starts_with("MTL") : type_name.starts_with("MTL");
}

struct Notifications {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool started = false;
  bool busy = false;
};

Notifications& notifications() {
  static auto* const all = new Notifications;
  return *all;
}

void run_notifications() {
  Notifications& all = notifications();
  Lock lock(all.mutex);
  while (true) {
    all.changed.wait(lock, [&] { return !all.tasks.empty(); });
    {
      std::function<void()> task = std::move(all.tasks.front());
      all.tasks.pop_front();
      all.busy = true;
      lock.unlock();
      const PoolScope pool;
      task();
    }
    lock.lock();
    all.busy = false;
    all.changed.notify_all();
  }
}

}  // namespace

State& State::get() {
  static auto* const state = new State;
  return *state;
}

bool has_residency_sets() {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.options.residency_sets != 0;
}

void count_nil_message() {
  nil_messages.fetch_add(1, std::memory_order_relaxed);
}
std::uint64_t nil_message_count() {
  return nil_messages.load(std::memory_order_relaxed);
}
void clear_nil_messages() {
  nil_messages.store(0, std::memory_order_relaxed);
}

bool told_to_fail(const std::string& type_name, const std::string& selector) {
  Failures& all = failures();
  const Guard guard(all.mutex);
  const bool counted = counts(type_name, selector);
  if (counted) ++all.creations;
  bool fails = false;
  for (std::size_t i = 0; i < all.told.size();) {
    Failure& failure = all.told[i];
    const bool meant = failure.name.empty() ? counted : names(failure.name, type_name, selector);
    if (meant && --failure.left == 0) {
      fails = true;
      all.told.erase(all.told.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return fails;
}

void tell_to_fail(const char* name, std::uint64_t nth) {
  Failures& all = failures();
  const Guard guard(all.mutex);
  all.told.push_back({name == nullptr ? "" : name, nth});
}

bool forget_failures() {
  Failures& all = failures();
  const Guard guard(all.mutex);
  const bool waiting = !all.told.empty();
  all.told.clear();
  return waiting;
}

std::uint64_t creation_count() {
  Failures& all = failures();
  const Guard guard(all.mutex);
  return all.creations;
}

void clear_creations() {
  Failures& all = failures();
  const Guard guard(all.mutex);
  all.creations = 0;
}

std::atomic<bool>& aborting() {
  static std::atomic<bool> value{false};
  return value;
}

void violation(std::string text) {
  if (aborting().load()) {
    std::fprintf(stderr, "Metal double: %s\n", text.c_str());
    std::abort();
  }
  Violations& all = violations();
  const Guard guard(all.mutex);
  all.texts.push_back(std::move(text));
}

std::size_t violation_count() {
  Violations& all = violations();
  const Guard guard(all.mutex);
  return all.texts.size();
}

const char* violation_text(std::size_t index) {
  Violations& all = violations();
  const Guard guard(all.mutex);
  return index < all.texts.size() ? all.texts[index].c_str() : nullptr;
}

void clear_violations() {
  Violations& all = violations();
  const Guard guard(all.mutex);
  all.texts.clear();
}

void notify(std::function<void()> task) {
  Notifications& all = notifications();
  const Guard guard(all.mutex);
  all.tasks.push_back(std::move(task));
  if (!all.started) {
    all.started = true;
    std::thread(&run_notifications).detach();
  }
  all.changed.notify_all();
}

void drain_notifications() {
  Notifications& all = notifications();
  Lock lock(all.mutex);
  all.changed.wait(lock, [&] { return all.tasks.empty() && !all.busy; });
}

}  // namespace metal_double
