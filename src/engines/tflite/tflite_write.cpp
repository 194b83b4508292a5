#include <cstring>

#include "base/round_up.h"
#include "engines/flatbuffer.h"
#include "engines/tflite/tflite_model.h"

namespace berth::internal::tflite {
namespace {

constexpr std::uint64_t kHeader = 8;      // the distance to the root table, and TFL3
constexpr std::uint64_t kAlignment = 64;  // what is inserted is a multiple of this, so that data stays aligned

// The bytes that are inserted behind the header. Positions are those of the new file. Distances to parts of the old
// file are known from the start, since their position grows by `inserted`.
class Insertion {
 public:
  explicit Insertion(std::uint64_t bytes) : bytes_(bytes) {}

  std::uint64_t end() const noexcept { return kHeader + used_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

  void number(std::uint32_t value) { put(&value, sizeof value); }
  void half(std::uint16_t value) { put(&value, sizeof value); }
  void put(const void* data, std::size_t size) {
    std::memcpy(bytes_.data() + used_, data, size);
    used_ += size;
  }
  // A distance from here to `target`, which is further on.
  void distance(std::uint64_t target) { number(static_cast<std::uint32_t>(target - end())); }
  void pad_to(std::uint64_t alignment) { used_ = round_up(end(), alignment) - kHeader; }

 private:
  std::vector<std::byte> bytes_;
  std::uint64_t used_ = 0;
};

}  // namespace

// The new parts, in this order: root table, list of buffers, list of metadata, the entry of the plan with its name, and
// the buffer of the plan with its data. The old root table and lists stay in the file, and nothing refers to them.
Result<std::vector<std::byte>> write_model(std::span<const std::byte> file, const Model& model,
                                           std::span<const std::int32_t> offsets,
                                           std::span<const std::uint32_t> order) {
  const std::uint64_t root_layout = kHeader, root = root_layout + 4 + 2 * kModelFields;
  const std::uint64_t buffers = root + 4 + 4 * kModelFields;
  const std::uint64_t metadata = buffers + 4 + 4 * (model.buffer_tables.size() + 1);
  const std::uint64_t entry_layout = metadata + 4 + 4 * (model.metadata_tables.size() + 1);
  const std::uint64_t entry = entry_layout + 8, name = entry + 12;
  const std::uint64_t buffer_layout = round_up(name + 4 + sizeof kPlanName, 4), buffer = buffer_layout + 8;
  const std::uint64_t data = round_up(buffer + 8 + 4, 16) - 4;  // its length; the bytes behind it are aligned
  const std::uint64_t data_bytes = 4 * (3 + offsets.size());
  const std::uint64_t inserted = round_up(data + 4 + data_bytes - kHeader, kAlignment);

  Insertion added(inserted);
  Flatbuffer old(file);
  added.half(4 + 2 * kModelFields);
  added.half(4 + 4 * kModelFields);
  for (unsigned i = 0; i < kModelFields; ++i) {
    const bool has = i == kModelBuffers || i == kModelMetadata || old.field(model.root, i) != 0;
    added.half(has ? static_cast<std::uint16_t>(4 + 4 * i) : 0);
  }
  added.number(static_cast<std::uint32_t>(root - root_layout));
  for (unsigned i = 0; i < kModelFields; ++i) {
    const std::uint64_t field = old.field(model.root, i);
    if (i == kModelBuffers)
      added.distance(buffers);
    else if (i == kModelMetadata)
      added.distance(metadata);
    else if (field == 0 || i == 0)
      added.number(field == 0 ? 0 : old.number<std::uint32_t>(field));
    else
      added.distance(old.follow(field) + inserted);
  }

  added.number(static_cast<std::uint32_t>(model.buffer_tables.size() + 1));
  for (const std::uint64_t table : model.buffer_tables) added.distance(table + inserted);
  added.distance(buffer);
  added.number(static_cast<std::uint32_t>(model.metadata_tables.size() + 1));
  for (const std::uint64_t table : model.metadata_tables) added.distance(table + inserted);
  added.distance(entry);

  for (const std::uint16_t half : {8, 12, 4, 8}) added.half(half);  // sizes, then where the two fields are
  added.number(static_cast<std::uint32_t>(entry - entry_layout));
  added.distance(name);
  added.number(static_cast<std::uint32_t>(model.buffer_tables.size()));
  added.number(sizeof kPlanName - 1);
  added.put(kPlanName, sizeof kPlanName);

  added.pad_to(4);
  for (const std::uint16_t half : {6, 8, 4, 0}) added.half(half);
  added.number(static_cast<std::uint32_t>(buffer - buffer_layout));
  added.distance(data);
  added.pad_to(4);
  while (added.end() < data) added.number(0);
  added.number(static_cast<std::uint32_t>(data_bytes));
  for (const std::size_t value : {std::size_t{1}, model.subgraphs.size(), offsets.size()})
    added.number(static_cast<std::uint32_t>(value));  // version, subgraphs, tensors
  for (const std::int32_t offset : offsets) added.number(static_cast<std::uint32_t>(offset));

  std::vector<std::byte> out(file.size() + inserted);
  std::memcpy(out.data(), file.data(), kHeader);
  const auto to_root = static_cast<std::uint32_t>(root);
  std::memcpy(out.data(), &to_root, sizeof to_root);
  std::memcpy(out.data() + kHeader, added.bytes().data(), inserted);
  std::memcpy(out.data() + kHeader + inserted, file.data() + kHeader, file.size() - kHeader);
  const Subgraph& main = model.subgraphs.front();
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint64_t at = main.order_at + 4 * i, table = main.operator_tables[order[i]];
    if (order[i] != i && table <= at)
      return Error(Code::kUnsupported, Layer::kEngine,
                   "operator {} stands before the list of operators, so another order cannot be written", order[i]);
    const auto to_table = static_cast<std::uint32_t>(table - at);
    std::memcpy(out.data() + inserted + at, &to_table, sizeof to_table);
  }
  return out;
}

}  // namespace berth::internal::tflite
