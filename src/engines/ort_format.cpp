#include "engines/ort_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "base/os/system_pages.h"
#include "base/try.h"
#include "engines/flatbuffer.h"
#include "engines/onnxruntime_session.h"

namespace berth::internal::ort {
namespace {

constexpr std::uint64_t kLongest = std::numeric_limits<std::int32_t>::max();

// The field numbers on the path from the graph to a weight.
constexpr unsigned kGraphInitialisers = 0, kTensorBytes = 4;

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : handle(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {}
  ~OpenFile() {
    if (handle >= 0) close(handle);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  bool write(const void* data, std::uint64_t size, std::uint64_t at) const noexcept {
    const char* next = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = pwrite(handle, next, size, static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      next += written;
      at += static_cast<std::uint64_t>(written);
      size -= static_cast<std::uint64_t>(written);
    }
    return true;
  }

  // Returns unused bytes to the file system, if it supports that.
  void free_room(std::uint64_t at, std::uint64_t size) const noexcept { punch_hole(handle, at, size); }

  const int handle;
};

}  // namespace

Result<std::vector<WeightPlace>> find_weights(std::span<const std::byte> file) {
  constexpr char kMagic[] = {'O', 'R', 'T', 'M'};
  if (file.size() < 8 || std::memcmp(file.data() + 4, kMagic, sizeof kMagic) != 0)
    return Error(Code::kInvalidData, Layer::kEngine,
                 "this is not a model in the engine's own format: no ORTM at byte 4");
  Flatbuffer buffer(file);
  std::vector<WeightPlace> places;
  std::uint64_t table = buffer.follow(0);
  for (const unsigned index : {kSessionModel, kModelGraph, kGraphInitialisers}) {
    const std::uint64_t at = buffer.field(table, index);
    if (at == 0) break;
    table = buffer.follow(at);
    if (index != kGraphInitialisers) continue;
    const auto count = buffer.number<std::uint32_t>(table);
    for (std::uint64_t i = 0; i < count && !buffer.broken; ++i) {
      const std::uint64_t reference = buffer.field(buffer.follow(table + 4 + 4 * i), kTensorBytes);
      if (reference == 0) continue;
      const std::uint64_t vector = buffer.follow(reference), bytes = buffer.number<std::uint32_t>(vector);
      if (buffer.holds(vector + 4, bytes) && bytes > 0) places.push_back({reference, vector + 4, bytes});
    }
  }
  if (buffer.broken)
    return Error(Code::kInvalidData, Layer::kEngine, "the model refers to byte {} of a file of {}", buffer.broken_at,
                 file.size());
  return places;
}

Result<void> align_weights(const std::string& path) {
  const auto failed = [&] { return Error::with_text(Code::kIo, Layer::kEngine, path + ": " + std::strerror(errno)); };
  BERTH_TRY_ASSIGN(const MappedModel model, MappedModel::open(path));
  const std::span<const std::byte> before = model.bytes();
  BERTH_TRY_ASSIGN(const std::vector<WeightPlace> places, find_weights(before));
  const OpenFile file(path);
  if (file.handle < 0) return failed();
  std::uint64_t end = before.size();
  std::vector<WeightPlace> left;
  for (const WeightPlace& place : places) {
    if (place.bytes < kWeightAlignment || place.begin % kWeightAlignment == 0) continue;
    const std::uint64_t begin = (end + 4 + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
    if (begin + place.bytes > kLongest) continue;
    // The length precedes the bytes and moves with them.
    const auto distance = static_cast<std::uint32_t>(begin - 4 - place.reference);
    if (!file.write(before.data() + place.begin - 4, 4 + place.bytes, begin - 4) ||
        !file.write(&distance, sizeof distance, place.reference))
      return failed();
    end = begin + place.bytes;
    left.push_back(place);
  }
  // Only now: two weights may have had the same bytes.
  for (const WeightPlace& place : left) file.free_room(place.begin, place.bytes);
  return {};
}

}  // namespace berth::internal::ort
