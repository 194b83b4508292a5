// Why an allocation failed, as a value. The layer that refuses the request sets the cause, and every layer below adds
// what it knows. Error::message() prints this report. It is a plain value, shared read-only by the errors that carry
// it.
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
    kCapacity,       // the device has no more memory
    kBudget,         // a limit set by the user
    kFragmentation,  // enough bytes are free, but not contiguous
    kPendingFrees,   // enough bytes will be free when submitted work finishes
    kInjected,       // by a fault injector
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
  std::string driver;  // the driver's error text, if the driver refused

  std::size_t budget = 0;  // the budget that refused; 0 if none did
  std::size_t live_bytes = 0;
  std::size_t live_count = 0;
  std::size_t cached_bytes = 0;
  std::size_t pending_bytes = 0;  // released, but still used by submitted work
  std::size_t peak_bytes = 0;
  std::size_t foreign_bytes = 0;  // imported: the device cannot free them
  std::size_t foreign_count = 0;
  std::size_t largest_free = 0;  // largest contiguous free range, if the layer knows it
  std::vector<Holder> holders;   // largest first

  // The smallest budget with which the request would have succeeded; 0 if no budget refused it.
  std::size_t budget_needed = 0;
  // The smallest holder whose release alone would have let the request succeed; empty if there is none.
  std::string holder_to_free;

  std::string to_string() const;
};

// The error for a request that `refusing` refused, with the explanation of that allocator and the layers below.
// `charged` is the size charged to the budget, if larger than the request; `driver` is the driver's error text.
Error out_of_memory(OutOfMemory::Cause cause, const Allocator& refusing, const BlockSpec& spec, std::size_t budget = 0,
                    std::size_t charged = 0, std::string driver = {});

}  // namespace berth
