// The part of PMIx's interface that Berth uses, declared here so that no header of PMIx is needed. It is the same from
// PMIx 2 to 6, all of which are libpmix.so.2; tests/remote/pmix_abi_test.cpp compares it with the real headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth::internal::pmix {

using Status = int;
inline constexpr Status kSuccess = 0;

using Rank = std::uint32_t;
inline constexpr Rank kAllRanks = UINT32_MAX - 1;

using DataType = std::uint16_t;
inline constexpr DataType kInt = 6, kUint32 = 14, kByteObject = 27;

using Scope = std::uint8_t;
inline constexpr Scope kGlobal = 3;

struct Process {
  char nspace[256];
  Rank rank;
};

struct ByteObject {
  char* bytes;
  std::size_t size;
};

struct Value {
  DataType type;
  union {
    int integer;
    std::uint32_t uint32;
    ByteObject bytes;
    void* largest[3];  // the size of the largest member
  } data;
};

struct Info {
  char key[512];
  std::uint32_t flags;
  Value value;
};

inline constexpr const char* kJobSize = "pmix.job.size";
inline constexpr const char* kTimeout = "pmix.timeout";  // seconds

using ValueCallback = void (*)(Status status, Value* value, void* data);

struct Functions {
  Status (*init)(Process* process, Info info[], std::size_t count) = nullptr;
  Status (*finalize)(const Info info[], std::size_t count) = nullptr;
  Status (*put)(Scope scope, const char key[], Value* value) = nullptr;
  Status (*commit)() = nullptr;
  Status (*get_nb)(const Process* process, const char key[], const Info info[], std::size_t count,
                   ValueCallback callback, void* data) = nullptr;
  const char* (*error_string)(Status status) = nullptr;
};

}  // namespace berth::internal::pmix
