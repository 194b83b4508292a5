// Short texts as numbers. Labels and tags travel with every block, so they are interned once and then cost
// two bytes to copy and one comparison to test. Names live as long as the process; any thread may make them.
#pragma once

#include <cstdint>
#include <string_view>

namespace berth {

class Name {
 public:
  constexpr Name() = default;  // no name
  // Interns `text`: one hash look-up under a lock, so keep the Name where a hot path needs it. After 65,534
  // different texts every new one becomes the name "(other)".
  Name(std::string_view text);
  Name(const char* text) : Name(std::string_view(text)) {}

  // The name with this id, as kept by Block. Requires: an id that came from id().
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
