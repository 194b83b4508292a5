#include "base/os/program_path.h"

#include <system_error>

#ifdef __APPLE__
#include <mach-o/dyld.h>

#include <cstdint>
#include <string>
#endif

namespace berth {

std::filesystem::path program_path() {
  std::error_code error;
#ifdef __APPLE__
  std::uint32_t bytes = 0;
  _NSGetExecutablePath(nullptr, &bytes);  // says how long it is
  std::string text(bytes, '\0');
  if (_NSGetExecutablePath(text.data(), &bytes) != 0) return {};
  auto path = std::filesystem::canonical(text.c_str(), error);
#else
  constexpr const char* kSelf = "/proc/self/exe";
  auto path = std::filesystem::read_symlink(kSelf, error);
  // A file that was replaced while it runs has no path any more, and can still be run through this one.
  if (!error && !std::filesystem::exists(path, error)) return kSelf;
#endif
  return error ? std::filesystem::path{} : path;
}

}  // namespace berth
