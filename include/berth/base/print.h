// Printing of Berth's types. A type prints itself if the namespace it is in has a to_string() for it:
// buffers, shapes, dtypes, devices, plans, counters and error codes do. Such a type can be written to a stream with <<,
// and with berth/format.h it can be an argument of fmt::format. The text is for people and may change; do not parse it.
// Any thread may print; counters are values, so printing them takes no lock.
#pragma once

#include <concepts>
#include <iosfwd>
#include <string_view>

namespace berth {

namespace internal::print {
// Converts to T or a base of it, so that a to_string() for a type that T merely converts to does not count.
template <class T>
struct Only {
  operator const T&() const noexcept;
};
// Converts to nothing: a to_string() that takes even this is a template for any type, such as fmt's.
template <class T>
struct None {};
}  // namespace internal::print

template <class T>
concept Printable = requires(const internal::print::Only<T>& value) {
  { to_string(value) } -> std::convertible_to<std::string_view>;
}
&&!requires(const internal::print::None<T>& value) {
  to_string(value);
};

template <class Traits, Printable T>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const T& value) {
  return out << std::string_view(to_string(value));
}

}  // namespace berth
