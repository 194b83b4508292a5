// MTLComputeCommandEncoder: arguments by index, and dispatches that keep the arguments as they were.
#include <array>
#include <cstring>

#include "library.h"

namespace metal_double {
namespace {

constexpr std::size_t kMostArguments = 31;
constexpr std::size_t kMostConstantBytes = 4096;

struct Argument {
  Object* buffer = nullptr;
  std::uint64_t offset = 0;
  std::shared_ptr<const std::vector<unsigned char>> constants;
};

struct ComputeEncoder : Encoder {
  Object* pipeline = nullptr;  // kept by the command buffer
  std::array<Argument, kMostArguments> arguments;
};

Argument* argument_at(Object* self, Selector selector, std::uintptr_t index) {
  if (index < kMostArguments) return &body<ComputeEncoder>(self).arguments[index];
  violation("argument: " + selector->name + " was given index " + std::to_string(index) + "; there are 31");
  return nullptr;
}

void set_pipeline(Object* self, Selector selector, Object* pipeline) {
  if (!may_encode(self, selector) || !expect(pipeline, "MTLComputePipelineState", "a pipeline")) return;
  CommandBuffer& commands = commands_of(self);
  if (body<Pipeline>(pipeline).device.get() != device_of(commands)) {
    return violation("wrong device: " + describe(pipeline) + " is of another device than the commands");
  }
  // Also where buffers are not retained: Metal leaves that to the program, and the run must find it alive.
  commands.kept.emplace_back(pipeline);
  body<ComputeEncoder>(self).pipeline = pipeline;
}

void set_buffer(Object* self, Selector selector, Object* buffer, std::uintptr_t offset, std::uintptr_t index) {
  if (!may_encode(self, selector)) return;
  Argument* argument = argument_at(self, selector, index);
  if (argument == nullptr) return;
  if (buffer == nullptr) {
    *argument = {};
  } else if (use_buffer(commands_of(self), buffer, offset, 1, "a kernel's argument")) {
    *argument = {buffer, offset, nullptr};
  }
}

void set_buffers(Object* self, Selector selector, Object* const* buffers, const std::uintptr_t* offsets,
                 NSRange range) {
  for (std::uintptr_t i = 0; i < range.length; ++i) {
    set_buffer(self, selector, buffers[i], offsets[i], range.location + i);
  }
}

void set_offset(Object* self, Selector selector, std::uintptr_t offset, std::uintptr_t index) {
  if (!may_encode(self, selector)) return;
  Argument* argument = argument_at(self, selector, index);
  if (argument == nullptr) return;
  if (argument->buffer == nullptr) {
    violation("argument: setBufferOffset:atIndex: was given index " + std::to_string(index) + ", which has no buffer");
  } else if (use_buffer(commands_of(self), argument->buffer, offset, 1, "a kernel's argument")) {
    argument->offset = offset;
  }
}

void set_bytes(Object* self, Selector selector, const void* bytes, std::uintptr_t length, std::uintptr_t index) {
  if (!may_encode(self, selector)) return;
  Argument* argument = argument_at(self, selector, index);
  if (argument == nullptr) return;
  if (bytes == nullptr || length == 0 || length > kMostConstantBytes) {
    return violation("argument: setBytes: was given " + std::to_string(length) + " bytes; it takes 1 to 4096");
  }
  const auto* first = static_cast<const unsigned char*>(bytes);
  *argument = {nullptr, 0, std::make_shared<const std::vector<unsigned char>>(first, first + length)};
}

void use_resource(Object* self, Selector selector, Object* buffer, std::uintptr_t) {
  if (!may_encode(self, selector)) return;
  CommandBuffer& commands = commands_of(self);
  if (use_buffer(commands, buffer, 0, 0, "a resource to use")) commands.granted.insert(buffer);
}

void use_resources(Object* self, Selector selector, Object* const* buffers, std::uintptr_t count,
                   std::uintptr_t usage) {
  for (std::uintptr_t i = 0; i < count; ++i) use_resource(self, selector, buffers[i], usage);
}

void barrier(Object* self, Selector selector, std::uintptr_t) {
  static_cast<void>(may_encode(self, selector));
}
void barrier_of(Object* self, Selector selector, Object* const*, std::uintptr_t) {
  static_cast<void>(may_encode(self, selector));
}
void set_memory(Object* self, Selector selector, std::uintptr_t, std::uintptr_t) {
  static_cast<void>(may_encode(self, selector));
}

void dispatch(Object* self, Selector selector, const std::size_t (&threads)[3], const std::size_t (&group)[3]) {
  if (!may_encode(self, selector)) return;
  auto& encoder = body<ComputeEncoder>(self);
  if (encoder.pipeline == nullptr) return violation("order: " + selector->name + " was sent before a pipeline was set");
  if (threads[0] == 0 || threads[1] == 0 || threads[2] == 0 || group[0] == 0 || group[1] == 0 || group[2] == 0) {
    return violation("argument: " + selector->name + " was given a grid or a threadgroup with a side of 0");
  }
  if (group[0] > kMostThreads || group[1] > kMostThreads || group[2] > kMostThreads ||
      group[0] * group[1] * group[2] > kMostThreads) {
    return violation("argument: " + selector->name + " was given a threadgroup of more than 1024 threads");
  }
  MetalDoubleLaunch launch{};
  for (int side = 0; side < 3; ++side) {
    launch.threads[side] = threads[side];
    launch.threadgroup[side] = group[side];
  }
  const auto run = body<Pipeline>(encoder.pipeline).run;
  commands_of(self).operations.emplace_back(
      [run, launch, arguments = encoder.arguments](CommandBuffer& running) -> std::optional<Fault> {
        MetalDoubleLaunch filled = launch;
        std::vector<std::vector<unsigned char>> constants;  // each launch has its own
        constants.reserve(kMostArguments);
        for (std::size_t i = 0; i < kMostArguments; ++i) {
          const Argument& argument = arguments[i];
          if (argument.buffer != nullptr) {
            if (auto fault = reach(running, argument.buffer)) return fault;
            auto& buffer = body<Buffer>(argument.buffer);
            filled.arguments[i] = {buffer.gpu + argument.offset, buffer.length - argument.offset};
          } else if (argument.constants) {
            constants.push_back(*argument.constants);
            filled.arguments[i] = {constants.back().data(), constants.back().size()};
          }
        }
        run(&filled);
        return {};
      });
}

void dispatch_threads(Object* self, Selector selector, Size threads, Size group) {
  const std::size_t all[3] = {threads.width, threads.height, threads.depth};
  const std::size_t one[3] = {group.width, group.height, group.depth};
  dispatch(self, selector, all, one);
}

void dispatch_groups(Object* self, Selector selector, Size groups, Size group) {
  const std::size_t all[3] = {groups.width * group.width, groups.height * group.height, groups.depth * group.depth};
  const std::size_t one[3] = {group.width, group.height, group.depth};
  dispatch(self, selector, all, one);
}

std::uintptr_t dispatch_type(Object*, Selector) {
  return 0;
}
Object* device(Object* self, Selector) {
  return device_of(commands_of(self));
}

}  // namespace

Encoder* new_compute_encoder() {
  return new ComputeEncoder;
}

void add_compute_types() {
  make_type("MTLComputeCommandEncoder")
      .on("setComputePipelineState:", &set_pipeline)
      .on("setBuffer:offset:atIndex:", &set_buffer)
      .on("setBuffers:offsets:withRange:", &set_buffers)
      .on("setBufferOffset:atIndex:", &set_offset)
      .on("setBytes:length:atIndex:", &set_bytes)
      .on("setThreadgroupMemoryLength:atIndex:", &set_memory)
      .on("useResource:usage:", &use_resource)
      .on("useResources:count:usage:", &use_resources)
      .on("memoryBarrierWithScope:", &barrier)
      .on("memoryBarrierWithResources:count:", &barrier_of)
      .on("dispatchThreads:threadsPerThreadgroup:", &dispatch_threads)
      .on("dispatchThreadgroups:threadsPerThreadgroup:", &dispatch_groups)
      .on("dispatchType", &dispatch_type)
      .on("endEncoding", &end_encoding)
      .on("label", &get_label<Encoder>)
      .on("setLabel:", &set_label<Encoder>)
      .on("device", &device);
}

}  // namespace metal_double
