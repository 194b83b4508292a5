#include "berth/remote/exchange.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <thread>

#include "pmix_double_path.h"
#include "support/support.h"

namespace berth {
namespace {

using namespace std::chrono_literals;
using test::counting_bytes;
using test::fails_with;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Deadline soon() {
  return std::chrono::steady_clock::now() + 10s;
}
Deadline at_once() {
  return std::chrono::steady_clock::now();
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

ExchangePtr in(const TemporaryFolder& folder, std::uint32_t rank, std::uint32_t ranks,
               const std::string& token = "job 1") {
  return make_folder_exchange({.folder = folder.path().string(), .rank = rank, .ranks = ranks, .token = token}).value();
}

// Sets variables of the environment for one test; those without a value are removed.
using Variables = std::map<std::string, std::optional<std::string>>;
class Environment {
 public:
  explicit Environment(Variables variables) {
    for (const char* name : {"BERTH_EXCHANGE", "BERTH_RANK", "BERTH_RANKS", "BERTH_JOB_TOKEN", "BERTH_PMIX",
                             "BERTH_PMIX_DOUBLE", "PMIX_RANK", "PMIX_NAMESPACE"})
      variables.try_emplace(name, std::nullopt);
    for (const auto& [name, value] : variables) {
      const char* before = std::getenv(name.c_str());
      before_[name] = before != nullptr ? std::optional<std::string>(before) : std::nullopt;
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) set(name, value);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value)
      ::setenv(name.c_str(), value->c_str(), 1);
    else
      ::unsetenv(name.c_str());
  }
  Variables before_;
};

// The one file in the folder whose name ends so.
std::filesystem::path file_of(const TemporaryFolder& folder, const std::string& ending) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().string().ends_with(ending)) return entry.path();
  return {};
}

TEST(FolderExchange, CarriesValuesBetweenProcesses) {
  const TemporaryFolder folder;
  constexpr std::uint32_t kRanks = 4;
  const auto value_of = [](std::uint32_t rank) { return counting_bytes(rank * 1000, rank); };
  std::vector<pid_t> children;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const ExchangePtr exchange = in(folder, rank, kRanks);
      bool right = exchange->publish("address", value_of(rank)).has_value();
      const auto all = exchange->fetch_all("address", soon());
      right = right && all && all->size() == kRanks;
      for (std::uint32_t other = 0; right && other < kRanks; ++other) right = (*all)[other] == value_of(other);
      _exit(right ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) files += entry.is_regular_file();
  EXPECT_EQ(files, kRanks) << "temporary files stayed";
}

TEST(FolderExchange, WaitsForARankThatIsLate) {
  const TemporaryFolder folder;
  const ExchangePtr first = in(folder, 0, 2), second = in(folder, 1, 2);
  std::thread late([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(second->publish("key", bytes_of("late")));
  });
  EXPECT_EQ(first->fetch(1, "key", soon()).value(), bytes_of("late"));
  late.join();
}

TEST(FolderExchange, NamesARankThatIsMissing) {
  const TemporaryFolder folder;
  const ExchangePtr exchange = in(folder, 0, 4);
  ASSERT_TRUE(exchange->publish("key", {}));
  const auto one = exchange->fetch(2, "key", std::chrono::steady_clock::now() + 5ms);
  ASSERT_TRUE(fails_with(one, Code::kDeviceUnavailable));
  EXPECT_THAT(one.error().message(), AllOf(HasSubstr("rank 2 of 4"), Not(HasSubstr("token"))));
  ASSERT_TRUE(in(folder, 2, 4)->publish("key", {}));
  const auto all = exchange->fetch_all("key", at_once());
  ASSERT_TRUE(fails_with(all, Code::kDeviceUnavailable));
  EXPECT_THAT(all.error().message(), HasSubstr("ranks 1, 3 of 4"));
  ASSERT_TRUE(in(folder, 3, 4)->publish("key", {}));
  EXPECT_THAT(exchange->fetch_all("key", at_once()).error().message(), HasSubstr("rank 1 of 4"));
  EXPECT_THAT(in(folder, 0, 100)->fetch_all("other", at_once()).error().message(),
              HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7 and perhaps more of 100"));
}

TEST(FolderExchange, DoesNotBelieveAJobWithAnotherToken) {
  const TemporaryFolder folder;
  ASSERT_TRUE(in(folder, 1, 2, "an earlier job")->publish("key", bytes_of("stale")));
  const ExchangePtr exchange = in(folder, 0, 2, "this job");
  const auto value = exchange->fetch(1, "key", at_once());
  ASSERT_TRUE(fails_with(value, Code::kDeviceUnavailable));
  EXPECT_THAT(value.error().message(), HasSubstr("another token"));
  // A stale file under the name of this job: the checksum has the token in it.
  ASSERT_TRUE(in(folder, 1, 2, "this job")->publish("other", bytes_of("fresh")));
  std::filesystem::path fresh = file_of(folder, "-1-other");
  std::string renamed = fresh.string();
  renamed.replace(renamed.size() - 5, 5, "key");
  std::filesystem::rename(file_of(folder, "-1-key"), renamed);
  EXPECT_TRUE(fails_with(exchange->fetch(1, "key", at_once()), Code::kInvalidData));
}

TEST(FolderExchange, RefusesTwoProcessesOfOneRank) {
  const TemporaryFolder folder;
  ASSERT_TRUE(in(folder, 1, 2)->publish("key", bytes_of("first")));
  EXPECT_TRUE(fails_with(in(folder, 1, 2)->publish("key", bytes_of("second")), Code::kAlreadyExists));
  EXPECT_EQ(in(folder, 0, 2)->fetch(1, "key", at_once()).value(), bytes_of("first"));
}

TEST(FolderExchange, NamesARankOfAJobOfAnotherSize) {
  const TemporaryFolder folder;
  ASSERT_TRUE(in(folder, 1, 3)->publish("key", {}));
  const auto value = in(folder, 0, 2)->fetch(1, "key", at_once());
  ASSERT_TRUE(fails_with(value, Code::kInvalidData));
  EXPECT_THAT(value.error().message(), AllOf(HasSubstr("rank 1"), HasSubstr("3 ranks"), HasSubstr("one of 2")));
}

TEST(FolderExchange, RefusesDamagedFiles) {
  const TemporaryFolder folder;
  ASSERT_TRUE(in(folder, 1, 2)->publish("key", bytes_of("the value")));
  const ExchangePtr reader = in(folder, 0, 2);
  const std::filesystem::path path = file_of(folder, "-1-key");
  std::string whole;
  {
    std::ifstream file(path, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto with = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    return reader->fetch(1, "key", at_once());
  };
  EXPECT_EQ(with(whole).value(), bytes_of("the value"));
  for (std::size_t length = 0; length < whole.size(); ++length)
    ASSERT_TRUE(fails_with(with(whole.substr(0, length)), Code::kInvalidData)) << length;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    ASSERT_TRUE(fails_with(with(flipped), Code::kInvalidData)) << at;
  }
  EXPECT_TRUE(fails_with(with(whole + "x"), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("garbage of somebody else"), Code::kInvalidData));
  EXPECT_THAT(with("garbage of somebody else").error().message(), HasSubstr("not a file of an exchange"))
      << "what cannot become whole is not waited for";
  const std::string no_numbers = whole.substr(0, whole.find('\n')) + "\nx\nx\nx\n";
  EXPECT_THAT(with(no_numbers).error().message(), HasSubstr("not a file of an exchange"));
  EXPECT_THAT(with(whole.substr(0, whole.find('\n') + 2)).error().message(), HasSubstr("ends too early"));
  EXPECT_TRUE(fails_with(with(std::string(2 * Exchange::kMostBytes, 'x')), Code::kInvalidData));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_TRUE(fails_with(reader->fetch(1, "key", at_once()), Code::kIo));
}

TEST(FolderExchange, WaitsForTheRestOfATornFile) {
  const TemporaryFolder folder;
  ASSERT_TRUE(in(folder, 1, 2)->publish("key", bytes_of("the value")));
  const std::filesystem::path path = file_of(folder, "-1-key");
  const std::filesystem::path aside = folder.path() / "aside";
  std::filesystem::copy_file(path, aside);
  std::filesystem::resize_file(path, 40);
  std::thread late([&] {
    std::this_thread::sleep_for(20ms);
    std::filesystem::rename(aside, path);
  });
  EXPECT_EQ(in(folder, 0, 2)->fetch(1, "key", soon()).value(), bytes_of("the value"));
  late.join();
}

TEST(FolderExchange, RefusesAFolderThatCannotBeUsed) {
  const TemporaryFolder folder;
  const auto made = [](const std::string& path) {
    return make_folder_exchange({.folder = path, .rank = 0, .ranks = 1, .token = "t"});
  };
  EXPECT_TRUE(fails_with(made((folder.path() / "absent").string()), Code::kIo));
  EXPECT_TRUE(fails_with(made(folder.write("file", {})), Code::kIo));
  EXPECT_TRUE(fails_with(made(""), Code::kIo));
  // Root may write to every folder of a disk, but not to this one.
  if (const auto nowhere = made("/proc")) {
    EXPECT_TRUE(fails_with((*nowhere)->publish("key", {}), Code::kIo));
  }
  const auto gone = make_folder_exchange(
      {.folder = (std::filesystem::create_directory(folder.path() / "gone"), (folder.path() / "gone").string()),
       .ranks = 1,
       .token = "t"});
  std::filesystem::remove(folder.path() / "gone");
  EXPECT_TRUE(fails_with((*gone)->publish("key", {}), Code::kIo));
}

TEST(Exchange, ChecksItsArguments) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  EXPECT_TRUE(fails_with(make_folder_exchange({.folder = path, .ranks = 1}), Code::kInvalidArgument)) << "no token";
  for (const auto& [rank, ranks] : {std::pair{0U, 0U}, {1U, 1U}, {5U, 4U}, {0U, Exchange::kMostRanks + 1}})
    EXPECT_TRUE(fails_with(make_folder_exchange({.folder = path, .rank = rank, .ranks = ranks, .token = "t"}),
                           Code::kInvalidArgument));
  const ExchangePtr exchange = in(folder, 0, 2);
  for (const std::string& key : {std::string(), std::string("a/b"), std::string("../a"), std::string("a\0b", 3),
                                 std::string(65, 'a'), std::string("ä")}) {
    EXPECT_TRUE(fails_with(exchange->publish(key, {}), Code::kInvalidArgument)) << key;
    EXPECT_TRUE(fails_with(exchange->fetch(0, key, at_once()), Code::kInvalidArgument)) << key;
  }
  EXPECT_TRUE(exchange->publish(std::string(64, 'a'), std::vector<std::byte>(Exchange::kMostBytes)));
  EXPECT_EQ(exchange->fetch(0, std::string(64, 'a'), at_once()).value().size(), Exchange::kMostBytes);
  EXPECT_TRUE(
      fails_with(exchange->publish("large", std::vector<std::byte>(Exchange::kMostBytes + 1)), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(exchange->fetch(2, "key", at_once()), Code::kInvalidArgument));
}

// A store in this process, as functions.
struct Store {
  std::map<std::pair<std::uint32_t, std::string>, std::vector<std::byte>> values;

  ExchangeFunctions of(std::uint32_t rank, std::uint32_t ranks) {
    return {.rank = rank,
            .ranks = ranks,
            .publish = [this, rank](const std::string& key, std::span<const std::byte> bytes) -> Result<void> {
              values[{rank, key}].assign(bytes.begin(), bytes.end());
              return {};
            },
            .fetch = [this](std::uint32_t from, const std::string& key, Deadline) -> Result<std::vector<std::byte>> {
              if (const auto found = values.find({from, key}); found != values.end()) return found->second;
              return Error(Code::kDeviceUnavailable, Layer::kDevice, "the store is empty");
            }};
  }
};

TEST(FunctionExchange, CallsTheFunctions) {
  Store store;
  const ExchangePtr first = make_function_exchange(store.of(0, 2)).value();
  const ExchangePtr second = make_function_exchange(store.of(1, 2)).value();
  EXPECT_EQ(second->rank(), 1U);
  EXPECT_EQ(second->ranks(), 2U);
  ASSERT_TRUE(second->publish("key", bytes_of("value")));
  EXPECT_EQ(first->fetch(1, "key", at_once()).value(), bytes_of("value"));
  const auto missing = first->fetch_all("key", at_once());
  ASSERT_TRUE(fails_with(missing, Code::kDeviceUnavailable));
  EXPECT_THAT(missing.error().message(), AllOf(HasSubstr("rank 0 of 2"), HasSubstr("the store is empty")));
}

TEST(FunctionExchange, TurnsExceptionsAndBadValuesIntoErrors) {
  Store store;
  ExchangeFunctions functions = store.of(0, 1);
  functions.publish = nullptr;
  EXPECT_TRUE(fails_with(make_function_exchange(functions), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(make_function_exchange(store.of(1, 1)), Code::kInvalidArgument));
  functions = store.of(0, 1);
  functions.publish = [](const std::string&, std::span<const std::byte>) -> Result<void> {
    throw std::runtime_error("no network");
  };
  functions.fetch = [](std::uint32_t, const std::string&, Deadline) -> Result<std::vector<std::byte>> { throw 7; };
  const ExchangePtr throws = make_function_exchange(functions).value();
  const auto published = throws->publish("key", {});
  ASSERT_TRUE(fails_with(published, Code::kDriver));
  EXPECT_THAT(published.error().message(), HasSubstr("no network"));
  EXPECT_TRUE(fails_with(throws->fetch(0, "key", at_once()), Code::kDriver));
  functions.fetch = [](std::uint32_t, const std::string&, Deadline) -> Result<std::vector<std::byte>> {
    return std::vector<std::byte>(Exchange::kMostBytes + 1);
  };
  EXPECT_TRUE(fails_with(make_function_exchange(functions).value()->fetch(0, "key", at_once()), Code::kInvalidData));
}

TEST(JobToken, IsThatOfTheExchangeOrDrawnByRankZero) {
  const TemporaryFolder folder;
  EXPECT_EQ(job_token(*in(folder, 1, 2, "given"), at_once()).value(), "given");
  Store store;
  const ExchangePtr first = make_function_exchange(store.of(0, 2)).value();
  const ExchangePtr second = make_function_exchange(store.of(1, 2)).value();
  EXPECT_TRUE(fails_with(job_token(*second, at_once()), Code::kDeviceUnavailable)) << "rank 0 has drawn none yet";
  const std::string drawn = job_token(*first, at_once()).value();
  EXPECT_EQ(drawn.size(), 32U);
  EXPECT_EQ(job_token(*second, at_once()).value(), drawn);
  Store another;
  EXPECT_NE(job_token(*make_function_exchange(another.of(0, 1)).value(), at_once()).value(), drawn);
}

TEST(JobExchange, FollowsTheEnvironment) {
  const TemporaryFolder folder;
  {
    const Environment none(Variables{});
    const auto made = make_job_exchange();
    ASSERT_TRUE(fails_with(made, Code::kDeviceUnavailable));
    EXPECT_THAT(made.error().message(), HasSubstr("berth launch"));
  }
  const Variables whole{
      {"BERTH_EXCHANGE", folder.path().string()}, {"BERTH_RANK", "2"}, {"BERTH_RANKS", "3"}, {"BERTH_JOB_TOKEN", "t"}};
  {
    const Environment job(whole);
    const ExchangePtr exchange = make_job_exchange().value();
    EXPECT_EQ(exchange->rank(), 2U);
    EXPECT_EQ(exchange->ranks(), 3U);
    EXPECT_EQ(exchange->token(), "t");
  }
  for (const auto& [name, wrong] :
       std::vector<std::pair<std::string, std::optional<std::string>>>{{"BERTH_RANK", std::nullopt},
                                                                       {"BERTH_RANK", "two"},
                                                                       {"BERTH_RANK", "3"},
                                                                       {"BERTH_RANK", "-1"},
                                                                       {"BERTH_RANK", "1x"},
                                                                       {"BERTH_RANKS", std::nullopt},
                                                                       {"BERTH_RANKS", "99999999999"},
                                                                       {"BERTH_JOB_TOKEN", std::nullopt}}) {
    auto changed = whole;
    changed[name] = wrong;
    const Environment job(changed);
    EXPECT_TRUE(fails_with(make_job_exchange(), Code::kInvalidArgument)) << name;
  }
}

Variables under_pmix(std::optional<std::string> mode = std::nullopt) {
  return {{"PMIX_RANK", "1"},
          {"PMIX_NAMESPACE", "job"},
          {"BERTH_PMIX", BERTH_PMIX_DOUBLE_PATH},
          {"BERTH_PMIX_DOUBLE", std::move(mode)}};
}

TEST(PmixExchange, PublishesAndFetches) {
  const Environment job(under_pmix());
  const ExchangePtr exchange = make_job_exchange().value();
  EXPECT_EQ(exchange->rank(), 1U);
  EXPECT_EQ(exchange->ranks(), 3U);
  EXPECT_TRUE(exchange->token().empty());
  ASSERT_TRUE(exchange->publish("key", bytes_of("value")));
  EXPECT_TRUE(fails_with(exchange->publish("key", bytes_of("other")), Code::kAlreadyExists));
  EXPECT_EQ(exchange->fetch(1, "key", at_once()).value(), bytes_of("value"));
  const auto missing = exchange->fetch(2, "key", std::chrono::steady_clock::now() + 30ms);
  ASSERT_TRUE(fails_with(missing, Code::kDeviceUnavailable));
  EXPECT_THAT(missing.error().message(), HasSubstr("rank 2 of 3"));
}

TEST(PmixExchange, SaysWhatIsMissing) {
  {
    const Environment none(Variables{{"PMIX_RANK", "1"}});
    EXPECT_TRUE(fails_with(make_pmix_exchange(), Code::kDeviceUnavailable));
  }
  auto variables = under_pmix();
  variables["BERTH_PMIX"] = "/absent/libpmix.so.2";
  {
    const Environment job(variables);
    const auto made = make_pmix_exchange();
    ASSERT_TRUE(fails_with(made, Code::kDeviceUnavailable));
    EXPECT_THAT(made.error().message(), AllOf(HasSubstr("libpmix2"), HasSubstr("BERTH_PMIX")));
  }
  variables["BERTH_PMIX"] = "libc.so.6";
  const Environment job(variables);
  const auto made = make_pmix_exchange();
  ASSERT_TRUE(fails_with(made, Code::kDeviceUnavailable));
  EXPECT_THAT(made.error().message(), HasSubstr("PMIx_Init"));
}

TEST(PmixExchange, ReportsEachFailureOfPmix) {
  {
    const Environment job(under_pmix("init"));
    const auto made = make_pmix_exchange();
    ASSERT_TRUE(fails_with(made, Code::kDriver));
    EXPECT_THAT(made.error().message(), AllOf(HasSubstr("PMIx_Init"), HasSubstr("ERROR OF THE DOUBLE")));
  }
  for (const char* mode : {"size", "get"}) {
    const Environment job(under_pmix(mode));
    EXPECT_TRUE(fails_with(make_pmix_exchange(), Code::kInvalidArgument)) << mode;
  }
  for (const char* mode : {"put", "commit"}) {
    const Environment job(under_pmix(mode));
    EXPECT_TRUE(fails_with(make_pmix_exchange().value()->publish("key", bytes_of("value")), Code::kDriver)) << mode;
  }
  for (const char* mode : {"string", "large"}) {
    const Environment job(under_pmix(mode));
    EXPECT_TRUE(fails_with(make_pmix_exchange().value()->fetch(0, "key", at_once()), Code::kInvalidData)) << mode;
  }
  const Environment job(under_pmix("silent"));
  EXPECT_TRUE(fails_with(make_pmix_exchange().value()->fetch(0, "key", at_once()), Code::kDeviceUnavailable));
}

TEST(PmixExchange, TakesAnAnswerThatComesAfterItGaveUp) {
  const Environment job(under_pmix("late"));
  const ExchangePtr exchange = make_pmix_exchange().value();
  ASSERT_TRUE(exchange->publish("key", bytes_of("value")));
  EXPECT_TRUE(fails_with(exchange->fetch(1, "key", at_once()), Code::kDeviceUnavailable));
  EXPECT_EQ(exchange->fetch(1, "key", soon()).value(), bytes_of("value"));
}

}  // namespace
}  // namespace berth
