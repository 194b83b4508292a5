// The exchange through PMIx. Each value is one key of this process, put and committed to the server of this machine; a
// fetch asks that server, which asks the server of the other rank. Fences are not used: with a lost rank one returned
// success.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/remote/exchange.h"
#include "remote/exchange_parts.h"
#include "remote/pmix_abi.h"

namespace berth {
namespace {

using namespace std::chrono_literals;
namespace pmix = internal::pmix;

constexpr const char* kDefaultLibrary = "libpmix.so.2";
// Asks again after this time for a key that the server does not know yet.
constexpr auto kPause = 5ms;
// A deadline in the past still gets an answer that takes no waiting.
constexpr auto kShortestWait = 20ms;
constexpr auto kInitialWait = 10s;

Error unavailable(std::string text) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice, std::move(text));
}

// The library stays open until the process ends, because it has threads.
Result<pmix::Functions> open_library() {
  const char* chosen = std::getenv("BERTH_PMIX");
  const char* path = chosen != nullptr && *chosen != '\0' ? chosen : kDefaultLibrary;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    return unavailable(fmt::format(
        "PMIx is not available: {}; install it (on Debian: apt-get install libpmix2), or set BERTH_PMIX to a "
        "libpmix.so.2",
        dlerror()));
  pmix::Functions functions;
  const char* missing = nullptr;
  const auto look_up = [&](auto& field, const char* name) {
    field = reinterpret_cast<std::remove_reference_t<decltype(field)>>(dlsym(library, name));
    if (field == nullptr && missing == nullptr) missing = name;
  };
  look_up(functions.init, "PMIx_Init");
  look_up(functions.finalize, "PMIx_Finalize");
  look_up(functions.put, "PMIx_Put");
  look_up(functions.commit, "PMIx_Commit");
  look_up(functions.get_nb, "PMIx_Get_nb");
  look_up(functions.error_string, "PMIx_Error_string");
  if (missing != nullptr) return unavailable(fmt::format("PMIx is not available: {} has no {}", path, missing));
  return functions;
}

Error failed(const pmix::Functions& functions, const char* call, pmix::Status status) {
  const char* text = functions.error_string(status);
  return Error::with_text(Code::kDriver, Layer::kDevice,
                          fmt::format("{} says {} ({})", call, text != nullptr ? text : "nothing", status));
}

// A question to the server. The answer may come after the asker gave up, so both hold the question.
struct Question {
  Mutex mutex;
  CondVar answered;
  bool done BERTH_GUARDED_BY(mutex) = false;
  pmix::Status status BERTH_GUARDED_BY(mutex) = pmix::kSuccess;
  pmix::DataType type BERTH_GUARDED_BY(mutex) = 0;
  std::uint32_t number BERTH_GUARDED_BY(mutex) = 0;
  std::vector<std::byte> bytes BERTH_GUARDED_BY(mutex){};
  // PMIx reads these until it answers.
  pmix::Process process{};
  pmix::Info timeout{};
  std::string key{};
};

void answer(pmix::Status status, pmix::Value* value, void* data) {
  const std::unique_ptr<std::shared_ptr<Question>> held(static_cast<std::shared_ptr<Question>*>(data));
  Question& question = **held;
  const MutexLock lock(question.mutex);
  question.status = status;
  if (status == pmix::kSuccess && value != nullptr) {
    // What Berth did not publish keeps type 0.
    if (value->type == pmix::kUint32) {
      question.type = value->type;
      question.number = value->data.uint32;
    }
    if (value->type == pmix::kByteObject && value->data.bytes.size <= Exchange::kMostBytes) {
      question.type = value->type;
      const auto* first = reinterpret_cast<const std::byte*>(value->data.bytes.bytes);
      question.bytes.assign(first, first + value->data.bytes.size);
    }
  }
  question.done = true;
  question.answered.notify_all();
}

// What a question led to.
enum class Outcome : std::uint8_t { kAnswered, kNotThere, kTooLate };

class PmixExchange final : public Exchange {
 public:
  PmixExchange(const pmix::Functions& functions, const pmix::Process& self, std::uint32_t ranks)
      : Exchange(self.rank, ranks, ""), functions_(functions), self_(self) {}
  ~PmixExchange() override { functions_.finalize(nullptr, 0); }

  // Asks once, and waits for the answer until `until`.
  static Outcome ask(const pmix::Functions& functions, const pmix::Process& about, const std::string& key,
                     Deadline until, std::shared_ptr<Question>& asked) {
    asked = std::make_shared<Question>();
    asked->process = about;
    asked->key = key;
    std::strcpy(asked->timeout.key, pmix::kTimeout);
    asked->timeout.value.type = pmix::kInt;
    const auto left = std::chrono::ceil<std::chrono::seconds>(until - std::chrono::steady_clock::now()).count();
    asked->timeout.value.data.integer = static_cast<int>(std::clamp<std::int64_t>(left, 1, 86'400));
    auto held = std::make_unique<std::shared_ptr<Question>>(asked);
    const pmix::Status status =
        functions.get_nb(&asked->process, asked->key.c_str(), &asked->timeout, 1, answer, held.get());
    if (status != pmix::kSuccess) return Outcome::kNotThere;  // there is no call of answer()
    static_cast<void>(held.release());                        // answer() deletes it
    const MutexLock lock(asked->mutex);
    while (!asked->done)
      if (!asked->answered.wait_until(asked->mutex, until) && !asked->done) return Outcome::kTooLate;
    return asked->status == pmix::kSuccess ? Outcome::kAnswered : Outcome::kNotThere;
  }

 private:
  static std::string name_of(const std::string& key) { return "berth." + key; }

  Result<void> do_publish(const std::string& key, std::span<const std::byte> bytes) override {
    const MutexLock lock(mutex_);
    if (published_.contains(key))
      return Error::with_text(Code::kAlreadyExists, Layer::kDevice,
                              fmt::format("rank {} has published {} before", rank(), key));
    pmix::Value value{};
    value.type = pmix::kByteObject;
    // PMIx copies the bytes; its interface has no const.
    value.data.bytes = {const_cast<char*>(reinterpret_cast<const char*>(bytes.data())), bytes.size()};
    if (const auto status = functions_.put(pmix::kGlobal, name_of(key).c_str(), &value); status != pmix::kSuccess)
      return failed(functions_, "PMIx_Put", status);
    if (const auto status = functions_.commit(); status != pmix::kSuccess)
      return failed(functions_, "PMIx_Commit", status);
    published_.insert(key);
    return {};
  }

  Result<std::vector<std::byte>> do_fetch(std::uint32_t from, const std::string& key, Deadline deadline) override {
    const Deadline until = std::max(deadline, std::chrono::steady_clock::now() + kShortestWait);
    pmix::Process about = self_;
    about.rank = from;
    for (;;) {
      std::shared_ptr<Question> asked;
      const Outcome outcome = ask(functions_, about, name_of(key), until, asked);
      if (outcome == Outcome::kAnswered) {
        const MutexLock lock(asked->mutex);
        if (asked->type != pmix::kByteObject)
          return Error(Code::kInvalidData, Layer::kDevice, "PMIx has a value of rank {} that Berth did not publish",
                       from);
        return asked->bytes;
      }
      if (outcome == Outcome::kTooLate || std::chrono::steady_clock::now() + kPause >= until)
        return internal::rank_missing(from, ranks(), key);
      std::this_thread::sleep_for(kPause);
    }
  }

  const pmix::Functions functions_;
  const pmix::Process self_;
  Mutex mutex_;
  std::set<std::string> published_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace

Result<ExchangePtr> make_pmix_exchange() {
  if (std::getenv("PMIX_RANK") == nullptr || std::getenv("PMIX_NAMESPACE") == nullptr)
    return unavailable(
        "this process was not started with PMIx: start it with mpirun, prterun or srun --mpi=pmix, or with `berth "
        "launch "
        "-n 4 -- program`");
  BERTH_TRY_ASSIGN(const pmix::Functions functions, open_library());
  pmix::Process self{};
  if (const auto status = functions.init(&self, nullptr, 0); status != pmix::kSuccess)
    return failed(functions, "PMIx_Init", status);
  pmix::Process job = self;
  job.rank = pmix::kAllRanks;
  std::shared_ptr<Question> asked;
  const Outcome outcome =
      PmixExchange::ask(functions, job, pmix::kJobSize, std::chrono::steady_clock::now() + kInitialWait, asked);
  std::uint32_t ranks = 0;
  if (outcome == Outcome::kAnswered) {
    const MutexLock lock(asked->mutex);
    if (asked->type == pmix::kUint32) ranks = asked->number;
  }
  auto exchange = std::make_shared<PmixExchange>(functions, self, ranks);  // finalizes also if the next line fails
  BERTH_TRY(internal::check_rank(self.rank, ranks));
  return ExchangePtr(std::move(exchange));
}

}  // namespace berth
