#include "run/private_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace berth::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 100;

int open_folder(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Removes what killed processes left behind: folders that nobody has locked. One that another process is just making is
// locked in vain by it afterwards, and it makes another.
void remove_abandoned(const std::string& parent, const std::string& prefix) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const int folder = open_folder(entry.path().string());
    if (folder < 0) continue;
    struct stat status {};
    if (fstat(folder, &status) == 0 && status.st_uid == geteuid() && flock(folder, LOCK_EX | LOCK_NB) == 0)
      fs::remove_all(entry.path(), ignored);
    close(folder);
  }
}

// Whether the name still stands for the folder that is open.
bool is_there(const std::string& path, int folder) {
  struct stat named {
  }, opened{};
  return lstat(path.c_str(), &named) == 0 && fstat(folder, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

}  // namespace

Result<PrivateFolder> PrivateFolder::make(const std::string& parent, const std::string& prefix) {
  remove_abandoned(parent, prefix);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string path = parent + "/" + prefix + "XXXXXX";
    if (mkdtemp(path.data()) == nullptr) break;
    const int folder = open_folder(path);
    if (folder < 0 && errno == ENOENT) continue;  // taken for an abandoned one
    if (folder < 0) break;
    // Where a file system has no locks, no process removes the folders of others either.
    const bool taken = flock(folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && is_there(path, folder)) return PrivateFolder(std::move(path), folder);
    close(folder);
  }
  return Error::with_text(Code::kIo, Layer::kProgram,
                          parent + ": no folder can be made in it: " + std::strerror(errno) + "; is it writable?");
}

PrivateFolder::PrivateFolder(PrivateFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::exchange(other.lock_, -1)) {}

PrivateFolder::~PrivateFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) close(lock_);
}

}  // namespace berth::cli
