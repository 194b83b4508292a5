// Reads a FlatBuffer without its schema compiler: numbers, distances and the fields of tables by their number. Every
// position is checked. After the first position outside the file, everything reads as zero and `broken_at` holds that
// position, so that a walk needs one check at its end; loops over counts from the file must also stop when it is
// broken. For use by one thread; the bytes must outlive the reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace berth::internal {

class Flatbuffer {
 public:
  explicit Flatbuffer(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T number(std::uint64_t at) {
    T value{};
    if (!holds(at, sizeof value)) return value;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }

  // The target of the 32-bit distance at this position.
  std::uint64_t follow(std::uint64_t at) { return at + number<std::uint32_t>(at); }

  // The position of a field of a table; 0 if the table does not have it.
  std::uint64_t field(std::uint64_t table, unsigned index) {
    const std::uint64_t layout = table - static_cast<std::uint64_t>(std::int64_t{number<std::int32_t>(table)});
    const std::uint64_t entry = 4 + 2 * std::uint64_t{index};
    if (entry + 2 > number<std::uint16_t>(layout)) return 0;
    const auto distance = number<std::uint16_t>(layout + entry);
    return distance == 0 ? 0 : table + distance;
  }

  // The number in a field, or `otherwise` if the table does not have it.
  template <class T>
  T number_in(std::uint64_t table, unsigned index, T otherwise) {
    const std::uint64_t at = field(table, index);
    return at == 0 ? otherwise : number<T>(at);
  }

  // A vector: the position of its first entry and how many there are. Its entries, of `entry_bytes` each, lie inside
  // the file. A field that is not there is an empty vector.
  struct Vector {
    std::uint64_t begin = 0;
    std::uint32_t count = 0;
  };
  Vector vector_in(std::uint64_t table, unsigned index, std::uint64_t entry_bytes) {
    const std::uint64_t at = field(table, index);
    if (at == 0) return {};
    const std::uint64_t target = follow(at);
    const Vector vector{target + 4, number<std::uint32_t>(target)};
    return holds(vector.begin, vector.count * entry_bytes) ? vector : Vector{};
  }

  bool holds(std::uint64_t at, std::uint64_t size) {
    if (broken) return false;
    broken = at > bytes_.size() || size > bytes_.size() - at;
    if (broken) broken_at = at;
    return !broken;
  }

  bool broken = false;
  std::uint64_t broken_at = 0;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace berth::internal
