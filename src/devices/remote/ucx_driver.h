// UCX: libucp.so.0, opened at run time and never linked, and a table of its functions, so that one binary runs with and
// without it. An open library stays loaded until the process ends. Any thread may call.
#pragma once

#include <string>

#include "berth/base/result.h"
#include "devices/remote/ucx_abi.h"
#include "devices/remote/ucx_log.h"

namespace berth::internal::ucx {

struct Driver {
#define BERTH_FIELD(name, result, parameters) Function<result parameters> name;
  BERTH_UCX_FUNCTIONS(BERTH_FIELD)
#undef BERTH_FIELD
  const char* (*status_string)(Status status) = nullptr;  // of libucs, which libucp needs
  unsigned major = 0, minor = 0, release = 0;
  std::string path;  // the library it came from

  // The library that BERTH_UCX names, otherwise libucp.so.0. kDeviceUnavailable, with the command that installs one, if
  // there is none or if it is older than 1.13.
  static Result<const Driver*> open();
  static Result<const Driver*> open(const std::string& path);

  // "Connection reset by remote peer".
  std::string words(Status status) const;
  // The error for a failed call.
  Error error(Status status, const char* call) const;
};

}  // namespace berth::internal::ucx
