#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "berth/memory/registry.h"
#include "conformance/allocator_conformance.h"
#include "conformance/device_conformance.h"

namespace berth::conformance {
namespace {

// A file that holds the pattern, gone when the program ends.
class PatternFile {
 public:
  PatternFile() : path_(std::filesystem::temp_directory_path() / ("berth_pattern_" + std::to_string(::getpid()))) {
    const std::vector<std::byte> bytes = pattern_bytes(kPatternBytes);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  ~PatternFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  PatternFile(const PatternFile&) = delete;
  PatternFile& operator=(const PatternFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

Result<DevicePtr> open() {
  static const PatternFile file;
  return device("DISK:" + file.path());
}

constexpr std::string_view kReadOnly = "a mapped file is read-only";
constexpr std::string_view kNotImported = "a file is named, not imported";

BERTH_DEVICE_CONFORMANCE(Disk,
                         DeviceCase{
                             .open = open,
                             .never = {{"ZeroesOnRequest", Code::kReadOnly, kReadOnly},
                                       {"WritesAtAnyByteAndNothingElse", Code::kReadOnly, kReadOnly},
                                       {"CopiesBetweenAnyBytes", Code::kReadOnly, kReadOnly},
                                       {"CopiesInsideOneBlockAsMemmove", Code::kReadOnly, kReadOnly},
                                       {"FillsAWindowAndNothingElse", Code::kReadOnly, kReadOnly},
                                       {"CopiesRowsWithPitches", Code::kReadOnly, kReadOnly},
                                       {"KeepsTheOrderRecorded", Code::kReadOnly, kReadOnly},
                                       {"LetsTheSourceOfAWriteBeReused", Code::kReadOnly, kReadOnly},
                                       {"MovesLargeTransfers", Code::kInvalidArgument, "the file has 1 MiB"},
                                       {"OrdersTwoQueuesByWaitFor", Code::kReadOnly, kReadOnly},
                                       {"CopiesAfterWorkThatNobodySubmitted", Code::kReadOnly, kReadOnly},
                                       {"CopiesAfterTheWorkOfSeveralQueues", Code::kReadOnly, kReadOnly},
                                       {"MayBeClosedWithWorkThatNobodySubmitted", Code::kReadOnly, kReadOnly},
                                       {"ChecksUsageBits", Code::kReadOnly, kReadOnly},
                                       {"CopiesFromTheHostDevice", Code::kReadOnly, kReadOnly},
                                       {"WritesThroughViewsAndNothingElse", Code::kReadOnly, kReadOnly},
                                       {"ImportsAndReleasesOnce", Code::kUnsupported, kNotImported},
                                       {"ReleasesAnImportAfterRecordedWork", Code::kUnsupported, kNotImported},
                                       {"ImportsOneMemoryTwice", Code::kUnsupported, kNotImported},
                                       {"ImportsMemoryOfItsOwn", Code::kUnsupported, kNotImported},
                                       {"LetsAReleaseDestroyAQueue", Code::kUnsupported, kNotImported},
                                       {"RunsAKernel", Code::kUnsupported, "a file computes nothing"},
                                       {"HandsOutItsNativeEncoder", Code::kUnsupported, "a file has no encoder"},
                                       {"CommitsResidencyOnceASubmit", Code::kUnsupported,
                                        "the page cache decides what of a file is in memory"},
                                       {"GrowableMovesBuffersTogether", Code::kUnsupported, kReadOnly},
                                       {"GrowableLeavesWhatIsHeldOrInUse", Code::kUnsupported, kReadOnly},
                                       {"GrowableRunsKernelsOnBuffersThatHaveMoved", Code::kUnsupported, kReadOnly},
                                       {"PoolZeroesMemoryThatIsStillInUse", Code::kReadOnly, kReadOnly},
                                       {"PoolHandsOutTheBufferReturnedLast", Code::kReadOnly, kReadOnly},
                                       {"PoolZeroesFreshMemoryAndReusedOnlyWhenAsked", Code::kReadOnly, kReadOnly},
                                       {"PoolRefusesWhatWasReturnedOrIsNotItsOwn", Code::kReadOnly, kReadOnly},
                                       {"PoolGivesBatchesAndTakesAStepBack", Code::kReadOnly, kReadOnly},
                                       {"PoolKeepsARegisteredBuffer", Code::kReadOnly, kReadOnly},
                                       {"PoolRefusesToRegisterAnotherDevicesBuffer", Code::kReadOnly, kReadOnly},
                                       {"PoolKeepsKindsOfMemoryApart", Code::kReadOnly, kReadOnly},
                                       {"PoolReportsAForgottenReset", Code::kReadOnly, kReadOnly},
                                       {"KvCacheCopiesASharedPageOnWrite", Code::kReadOnly, kReadOnly},
                                       {"KvCacheMovesPagesToMakeRoom", Code::kReadOnly, kReadOnly},
                                       {"KvCacheBringsBlocksBackFromTheHost", Code::kReadOnly, kReadOnly},
                                       {"KvCacheKeepsBlocksOfTheHost", Code::kReadOnly, kReadOnly},
                                       {"KvCacheGivesSequencesContiguousAddresses", Code::kUnsupported,
                                        "a file has no virtual-memory mapping"}},
                             .read_only_pattern = true});

// Blocks of a file are windows of the same bytes, and none of them is written.
BERTH_ALLOCATOR_CONFORMANCE(
    DiskRoot, [] { return allocator_of(open()); }, false);

}  // namespace
}  // namespace berth::conformance
