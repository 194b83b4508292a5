// Berth's types as arguments of fmt: fmt::print("{} on {:>8}", shape, *device) prints what to_string() returns, with
// the format options of a string. This header needs fmt and is the only one that does; berth/berth.h does not include
// it.
#pragma once

#include <fmt/format.h>

#include "berth/base/print.h"

template <berth::Printable T>
struct fmt::formatter<T, char> : fmt::formatter<fmt::string_view, char> {
  template <class Context>
  auto format(const T& value, Context& context) const {
    const auto text = to_string(value);  // a std::string, or a view of static text
    return fmt::formatter<fmt::string_view, char>::format({text.data(), text.size()}, context);
  }
};
