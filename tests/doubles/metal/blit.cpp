// MTLBlitCommandEncoder: copies and fills, in multiples of four bytes as macOS wants them.
#include <cstring>

#include "metal.h"

namespace metal_double {
namespace {

constexpr std::uint64_t kUnit = 4;

// Sizes are checked before ranges, so that each mistake is told once.
bool whole_units(Selector selector, std::uint64_t bytes, std::initializer_list<std::uint64_t> offsets) {
  bool whole = bytes % kUnit == 0;
  for (const std::uint64_t offset : offsets) whole = whole && offset % kUnit == 0;
  if (bytes == 0) {
    violation("argument: " + selector->name + " was given 0 bytes");
  } else if (!whole) {
    violation("alignment: " + selector->name + " was given offsets or a size that are no multiples of 4 bytes");
  }
  return whole && bytes != 0;
}

void copy(Object* self, Selector selector, Object* source, std::uintptr_t from, Object* target, std::uintptr_t to,
          std::uintptr_t bytes) {
  if (!may_encode(self, selector)) return;
  CommandBuffer& commands = commands_of(self);
  if (!whole_units(selector, bytes, {from, to})) return;
  if (!use_buffer(commands, source, from, bytes, "the source of a copy")) return;
  if (!use_buffer(commands, target, to, bytes, "the target of a copy")) return;
  if (source == target && from < to + bytes && to < from + bytes) {
    return violation("overlap: a copy within " + describe(source) + " reads and writes the same bytes");
  }
  commands.operations.emplace_back([=](CommandBuffer& running) -> std::optional<Fault> {
    for (Object* buffer : {source, target}) {
      if (auto fault = reach(running, buffer)) return fault;
    }
    std::memcpy(body<Buffer>(target).gpu + to, body<Buffer>(source).gpu + from, bytes);
    return {};
  });
}

void fill(Object* self, Selector selector, Object* target, NSRange range, unsigned char value) {
  if (!may_encode(self, selector)) return;
  CommandBuffer& commands = commands_of(self);
  if (!whole_units(selector, range.length, {range.location})) return;
  if (!use_buffer(commands, target, range.location, range.length, "the target of a fill")) return;
  commands.operations.emplace_back([=](CommandBuffer& running) -> std::optional<Fault> {
    if (auto fault = reach(running, target)) return fault;
    std::memset(body<Buffer>(target).gpu + range.location, value, range.length);
    return {};
  });
}

void synchronize(Object* self, Selector selector, Object* buffer) {
  if (!may_encode(self, selector)) return;
  if (!use_buffer(commands_of(self), buffer, 0, 0, "the resource to synchronise")) return;
  if (body<Buffer>(buffer).storage != 1) {
    violation("argument: synchronizeResource: is for managed memory, and " + describe(buffer) + " has none");
  }
}

Object* device(Object* self, Selector) {
  return device_of(commands_of(self));
}

}  // namespace

Encoder* new_blit_encoder() {
  return new Encoder;
}

void add_blit_types() {
  make_type("MTLBlitCommandEncoder")
      .on("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", &copy)
      .on("fillBuffer:range:value:", &fill)
      .on("synchronizeResource:", &synchronize)
      .on("endEncoding", &end_encoding)
      .on("label", &get_label<Encoder>)
      .on("setLabel:", &set_label<Encoder>)
      .on("device", &device);
}

}  // namespace metal_double
