// Why an allocation failed, as a value. The layer that refuses names the cause; every layer below adds what it
// knows; Error::message() is this report as text. A plain value, shared read-only by the errors that carry it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "berth/base/name.h"
#include "berth/base/result.h"

namespace berth {

class Allocator;
struct BlockSpec;

struct OutOfMemory {
  enum class Cause : std::uint8_t {
    kCapacity,       // the device has no more
    kBudget,         // a limit that was set by the user
    kFragmentation,  // enough bytes are free, but not in one piece
    kPendingFrees,   // enough bytes will be free when submitted work ends
    kInjected,       // a fault injector
  };

  struct Holder {
    std::string label{};  // "kv-cache 0..11" stands for twelve labels that differ in their last number
    std::size_t bytes = 0;
    std::size_t count = 0;
  };

  Cause cause = Cause::kCapacity;
  std::size_t asked = 0;
  Name label;
  std::string device;
  std::string driver;  // the driver's own words, where it refused

  std::size_t budget = 0;  // the refusing budget, 0 if none is involved
  std::size_t live_bytes = 0;
  std::size_t live_count = 0;
  std::size_t cached_bytes = 0;
  std::size_t pending_bytes = 0;  // released, but submitted work still uses them
  std::size_t peak_bytes = 0;
  std::size_t foreign_bytes = 0;  // imported from elsewhere: not the device's to free
  std::size_t foreign_count = 0;
  std::size_t largest_free = 0;  // largest single free piece, where the layer knows
  std::vector<Holder> holders;   // largest first

  // The smallest budget that would have let the request succeed; 0 if no budget is involved.
  std::size_t budget_needed = 0;
  // The smallest holder whose release alone would have let it succeed; empty if none would.
  std::string holder_to_free;

  std::string to_string() const;
};

// The error for a request that `refusing` turned down: asks it and the layers below to explain. `charged` is what
// the budget would have been charged, where that is more than was asked for; `driver` what the driver said.
Error out_of_memory(OutOfMemory::Cause cause, const Allocator& refusing, const BlockSpec& spec, std::size_t budget = 0,
                    std::size_t charged = 0, std::string driver = {});

}  // namespace berth
