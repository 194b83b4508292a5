// Interned strings. A Name is a two-byte id for a short text such as a label or a tag. Every block carries one, so
// copying and comparing names is a single integer operation. Names are never freed. Any thread may create and read
// them.
#pragma once

#include <cstdint>
#include <string_view>

namespace berth {

class Name {
 public:
  constexpr Name() = default;  // no name
  // Interns `text` with one hash lookup under a lock; on a hot path, create the Name once and keep it. After 65,534
  // distinct texts, every new text becomes the name "(other)".
  Name(std::string_view text);
  Name(const char* text) : Name(std::string_view(text)) {}

  // The name with this id. Requires: `id` was returned by id().
  static constexpr Name from_id(std::uint16_t id) noexcept {
    Name name;
    name.id_ = id;
    return name;
  }

  constexpr std::uint16_t id() const noexcept { return id_; }
  constexpr explicit operator bool() const noexcept { return id_ != 0; }
  std::string_view text() const noexcept;  // "" for no name
  friend constexpr bool operator==(Name, Name) = default;

 private:
  std::uint16_t id_ = 0;
};

}  // namespace berth
