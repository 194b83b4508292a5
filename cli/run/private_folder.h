// A folder for the files of one process, which goes with it. For use by one thread.
#pragma once

#include <string>

#include "berth/base/result.h"

namespace berth::cli {

class PrivateFolder {
 public:
  // Makes a folder in `parent` that only this user may open, named `prefix` and six random characters. Folders with
  // this prefix that processes of this user left there when they were killed are removed. kIo.
  static Result<PrivateFolder> make(const std::string& parent, const std::string& prefix);
  PrivateFolder(PrivateFolder&& other) noexcept;
  PrivateFolder& operator=(PrivateFolder&&) = delete;
  // Removes the folder with everything in it.
  ~PrivateFolder();
  const std::string& path() const noexcept { return path_; }

 private:
  PrivateFolder(std::string path, int lock) noexcept : path_(std::move(path)), lock_(lock) {}

  std::string path_;  // empty once moved from
  int lock_;          // locked as long as the process lives: tells folders in use from those left behind
};

}  // namespace berth::cli
