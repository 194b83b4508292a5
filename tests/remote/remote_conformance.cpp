// Every check of the suite on the memory of another process, which serves all checks of one case. BERTH_UCX chooses the
// UCX of both.
#include <map>
#include <memory>
#include <vector>

#include "conformance/device_conformance.h"
#include "devices/remote/ucx_driver.h"
#include "remote/rank_process.h"

namespace berth::conformance {
namespace {

// Two ranks: this process, and one that lends 256 MiB.
struct Pair {
  explicit Pair(const std::string& transports)
      : neighbour(folder, 1, 2, {.lends = std::size_t{256} << 20, .transports = transports}) {
    joined = Cluster::join(
        {.exchange = folder.exchange(0, 2), .transports = transports, .give_up_after = std::chrono::minutes(1)});
    static_cast<void>(neighbour.joined());
  }
  test::JobFolder folder;
  test::RankProcess neighbour;
  std::vector<Buffer> windows;
  Result<ClusterPtr> joined = Error(Code::kDeviceUnavailable, Layer::kDevice, "not joined yet");
};

// The tests of one case share a pair, and gtest has no place for the end of a case, so it goes after the last test.
// Leak checks at the end of the process cannot read memory that UCX has registered.
class Pairs final : public ::testing::Environment {
 public:
  std::unique_ptr<Pair>& operator[](const std::string& transports) { return pairs_[transports]; }
  void TearDown() override { pairs_.clear(); }

 private:
  std::map<std::string, std::unique_ptr<Pair>> pairs_;
};

Pair& pair_over(const std::string& transports) {
  // gtest owns it, and adds it when the first test runs.
  static auto* const pairs = static_cast<Pairs*>(::testing::AddGlobalTestEnvironment(new Pairs));
  std::unique_ptr<Pair>& pair = (*pairs)[transports];
  if (pair == nullptr) pair = std::make_unique<Pair>(transports);
  return *pair;
}

DeviceCase neighbour_over(std::string transports) {
  DeviceCase result;
  result.open = [transports]() -> Result<DevicePtr> {
    if (auto found = internal::ucx::Driver::open(); !found) return found.error();
    Pair& pair = pair_over(transports);
    if (!pair.joined) return pair.joined.error();
    return (*pair.joined)->device(1);
  };
  // Foreign memory is a window that the other process opened.
  result.foreign = [transports](Device&, std::span<const std::byte> contents) -> Result<ForeignMemory> {
    Pair& pair = pair_over(transports);
    const RemoteWindow window = pair.neighbour.open("foreign", contents.size(), Access::kReadWrite, 0);
    auto imported = (*pair.joined)->import(window);
    if (!imported) return imported.error();
    if (auto written = imported->copyin(contents); !written) return written.error();
    // Kept for good: an import of its own is counted by the device.
    pair.windows.push_back(*std::move(imported));
    return ForeignMemory{.address = pair.windows.back().native_handle(), .bytes = contents.size(), .release = [] {}};
  };
  result.never = {
      {"RunsAKernel", Code::kUnsupported, "another process cannot run the code of this one"},
      {"HandsOutItsNativeEncoder", Code::kUnsupported, "UCX has none"},
      {"CommitsResidencyOnceASubmit", Code::kUnsupported, "the owner keeps its memory"},
      {"KvCacheGivesSequencesContiguousAddresses", Code::kUnsupported, "the addresses of another process are its own"},
      {"GrowableRunsKernelsOnBuffersThatHaveMoved", Code::kUnsupported,
       "another process cannot run the code of this one"}};
  return result;
}

BERTH_DEVICE_CONFORMANCE(RemoteOnOneHost, neighbour_over(""));
BERTH_DEVICE_CONFORMANCE(RemoteOverTcp, neighbour_over("tcp"));

}  // namespace
}  // namespace berth::conformance
