#include "engines/weight_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "base/atomic_file.h"
#include "base/os/system_pages.h"
#include "base/round_up.h"
#include "base/try.h"

namespace berth::internal {
namespace {

// A descriptor that is closed with its scope.
class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const noexcept { return number_; }

 private:
  int number_;
};

Error io_error(const std::string& what, const std::string& path) {
  return Error::with_text(Code::kIo, Layer::kEngine, what + " " + path + ": " + std::strerror(errno));
}

// The name of a content. It only has to be unlikely to repeat: what a file holds is compared before it is used.
std::string content_name(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kOdd[2] = {0x9e37'79b9'7f4a'7c15, 0xc2b2'ae3d'27d4'eb4f};
  std::uint64_t lanes[4] = {1, 2, 3, 4};
  std::size_t at = 0;
  for (; at + 32 <= bytes.size(); at += 32)
    for (std::size_t lane = 0; lane < 4; ++lane) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data() + at + 8 * lane, 8);
      lanes[lane] = (lanes[lane] ^ word) * kOdd[0];
      lanes[lane] ^= lanes[lane] >> 29;
    }
  for (; at < bytes.size(); ++at) lanes[at % 4] = (lanes[at % 4] ^ std::to_integer<std::uint64_t>(bytes[at])) * kOdd[1];
  std::uint64_t sum[2] = {bytes.size(), 0};
  for (const std::uint64_t lane : lanes) {
    sum[0] = (sum[0] ^ lane) * kOdd[1];
    sum[0] ^= sum[0] >> 31;
    sum[1] = (sum[1] + lane) * kOdd[0];
    sum[1] ^= sum[1] >> 33;
  }
  char name[64];
  std::snprintf(name, sizeof name, "%016llx%016llx-%zu", static_cast<unsigned long long>(sum[0]),
                static_cast<unsigned long long>(sum[1]), bytes.size());
  return name;
}

// Opens the file of a content if it may be used: a plain file of this user or of root that nobody else may write, with
// exactly these bytes.
Result<Descriptor> open_same(const std::string& path, std::span<const std::byte> bytes) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (file.number() < 0) {
    if (errno == ENOENT) return Error(Code::kNotFound, Layer::kEngine, "this content has no file yet");
    return io_error("cannot open", path);
  }
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) return io_error("cannot examine", path);
  if (!S_ISREG(status.st_mode) || (status.st_uid != ::geteuid() && status.st_uid != 0) ||
      (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return Error::with_text(Code::kUnsupported, Layer::kEngine,
                            path + " is not a file that only this user can write: choose another folder");
  const Error damaged =
      Error::with_text(Code::kInvalidData, Layer::kEngine, path + " does not have the bytes that its name promises");
  if (static_cast<std::uint64_t>(status.st_size) != bytes.size()) return damaged;
  // Read, not mapped: a file that is truncated meanwhile is then an error and not a signal.
  constexpr std::size_t kChunk = 256 * 1024;
  const auto chunk = std::make_unique_for_overwrite<std::byte[]>(std::min(kChunk, bytes.size()));
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t got =
        ::pread(file.number(), chunk.get(), std::min(kChunk, bytes.size() - at), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read", path);
    if (got == 0 || std::memcmp(chunk.get(), bytes.data() + at, static_cast<std::size_t>(got)) != 0) return damaged;
    at += static_cast<std::size_t>(got);
  }
  return file;
}

Result<void> write_file(const std::string& path, std::span<const std::byte> bytes) {
  BERTH_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  BERTH_TRY(file.write(bytes));
  // Not flushed: whoever finds it after a loss of power compares it first.
  BERTH_TRY(file.commit(false));
  // A file that is mapped must not change.
  if (::chmod(path.c_str(), S_IRUSR | S_IRGRP | S_IROTH) != 0) return io_error("cannot protect", path);
  return {};
}

// Replaces whole pages by the same bytes of a file.
Result<void> share_block(const std::string& folder, std::span<std::byte> pages) {
  const std::string path = (std::filesystem::path(folder) / content_name(pages)).string();
  Result<Descriptor> file = open_same(path, pages);
  if (!file && (file.error().code() == Code::kNotFound || file.error().code() == Code::kInvalidData)) {
    BERTH_TRY(write_file(path, pages));
    file = open_same(path, pages);
  }
  if (!file) return Error(std::move(file).error());
  // The time of its last use, for those who keep the folder small. Only its owner can set it.
  const timespec now_and_as_it_is[2] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
  static_cast<void>(::futimens(file->number(), now_and_as_it_is));
  void* mapped = ::mmap(pages.data(), pages.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file->number(), 0);
  if (mapped == MAP_FAILED) return io_error("cannot map", path);
  return {};
}

}  // namespace

WeightMemory::~WeightMemory() {
  for (const auto& [address, owned] : blocks_) ::munmap(reinterpret_cast<void*>(address), owned.bytes);
}

void* WeightMemory::allocate(std::size_t bytes, std::uint64_t load) noexcept {
  const std::size_t page = page_bytes();
  if (bytes == 0 || bytes > SIZE_MAX - page) return nullptr;
  const std::size_t whole = round_up(bytes, page);
  void* memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  try {
    const MutexLock guard(mutex_);
    blocks_.emplace(reinterpret_cast<std::uintptr_t>(memory), Owned{whole, load});
  } catch (const std::bad_alloc&) {
    ::munmap(memory, whole);
    return nullptr;
  }
  return memory;
}

bool WeightMemory::release(void* memory) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  if (address % page_bytes() != 0) return false;
  std::size_t bytes = 0;
  {
    const MutexLock guard(mutex_);
    const auto at = blocks_.find(address);
    if (at == blocks_.end()) return false;
    bytes = at->second.bytes;
    blocks_.erase(at);
  }
  ::munmap(memory, bytes);
  return true;
}

WeightMemory::Shared WeightMemory::share(const std::string& folder, std::uint64_t load) {
  std::vector<std::span<std::byte>> blocks;
  Shared result;
  {
    const MutexLock guard(mutex_);
    for (const auto& [address, owned] : blocks_)
      if (owned.load == load) blocks.emplace_back(reinterpret_cast<std::byte*>(address), owned.bytes);
  }
  for (const std::span<std::byte> block : blocks) result.bytes += block.size();
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    result.problem = "cannot create the folder " + folder + ": " + failed.message();
    return result;
  }
  for (const std::span<std::byte> block : blocks) {
    if (Result<void> shared = share_block(folder, block); shared)
      result.shared += block.size();
    else if (result.problem.empty())
      result.problem = shared.error().message();
  }
  return result;
}

}  // namespace berth::internal
