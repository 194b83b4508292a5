#include "berth/base/name.h"

#include <deque>
#include <string>
#include <unordered_map>

#include "base/across_fork.h"
#include "berth/base/mutex.h"

namespace berth {
namespace {

struct Names final : internal::AcrossFork {
  Names() { join_forks(*this, Turn::kLeaf); }
  void before_fork() noexcept override BERTH_NO_THREAD_ANALYSIS { mutex.lock(); }
  void after_fork(bool) noexcept override BERTH_NO_THREAD_ANALYSIS { mutex.unlock(); }

  Mutex mutex;
  std::deque<std::string> texts BERTH_GUARDED_BY(mutex){""};
  std::unordered_map<std::string_view, std::uint16_t> ids BERTH_GUARDED_BY(mutex){{"", std::uint16_t{0}}};
};

// Never destroyed: the leak report at exit still reads names.
Names& names() {
  static Names* const instance = new Names;
  return *instance;
}

// Made when the program starts: a child of a fork would wait forever for a thread that was making it.
[[maybe_unused]] const Names& made_at_start = names();

constexpr std::uint16_t kOther = 0xffff;

// Not in the constructor: the thread-safety analysis leaves constructors out.
std::uint16_t id_of(std::string_view text) {
  Names& table = names();
  const MutexLock lock(table.mutex);
  if (const auto found = table.ids.find(text); found != table.ids.end()) return found->second;
  if (table.texts.size() >= kOther) return kOther;
  const auto id = static_cast<std::uint16_t>(table.texts.size());
  table.texts.emplace_back(text);
  table.ids.emplace(table.texts.back(), id);
  return id;
}

}  // namespace

Name::Name(std::string_view text) : id_(id_of(text)) {}

std::string_view Name::text() const noexcept {
  if (id_ == 0) return "";
  if (id_ == kOther) return "(other)";
  Names& table = names();
  const MutexLock lock(table.mutex);
  return table.texts[id_];
}

}  // namespace berth
