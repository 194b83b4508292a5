#include "base/os/program_path.h"

#include <mach-o/dyld.h>

#include <cstdint>
#include <string>
#include <system_error>

namespace berth::internal {

std::filesystem::path program_path() {
  std::uint32_t bytes = 0;
  _NSGetExecutablePath(nullptr, &bytes);  // says how long it is
  std::string text(bytes, '\0');
  if (_NSGetExecutablePath(text.data(), &bytes) != 0) return {};
  std::error_code error;
  auto path = std::filesystem::canonical(text.c_str(), error);
  return error ? std::filesystem::path{} : path;
}

}  // namespace berth::internal
