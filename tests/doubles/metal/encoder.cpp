// What encoders of both kinds share: when a command may be added, and which memory it may name.
#include "metal.h"

namespace metal_double {

Encoder::~Encoder() {
  if (!ended) violation("open encoder: " + describe(self) + " was released before it ended its encoding");
  if (commands && body<CommandBuffer>(commands.get()).encoder == self) {
    body<CommandBuffer>(commands.get()).encoder = nullptr;
  }
}

bool may_encode(Object* encoder, Selector selector) {
  if (!body<Encoder>(encoder).ended) return true;
  violation("after endEncoding: " + describe(encoder) + " was sent " + selector->name);
  return false;
}

CommandBuffer& commands_of(Object* encoder) {
  return body<CommandBuffer>(body<Encoder>(encoder).commands.get());
}

void end_encoding(Object* encoder, Selector selector) {
  if (!may_encode(encoder, selector)) return;
  body<Encoder>(encoder).ended = true;
  commands_of(encoder).encoder = nullptr;
}

bool use_buffer(CommandBuffer& commands, Object* buffer, std::uint64_t offset, std::uint64_t bytes, const char* what) {
  if (!expect(buffer, "MTLBuffer", what)) return false;
  auto& memory = body<Buffer>(buffer);
  if (memory.device.get() != device_of(commands)) {
    violation("wrong device: " + describe(buffer) + ", " + what + ", is of another device than " +
              describe(commands.self));
    return false;
  }
  if (offset > memory.length || bytes > memory.length - offset) {
    violation("range: [" + std::to_string(offset) + ", " + std::to_string(offset + bytes) + "), " + what +
              ", is outside the " + std::to_string(memory.length) + " bytes of " + describe(buffer));
    return false;
  }
  if (commands.uses.insert(buffer).second && commands.retains) commands.kept.emplace_back(buffer);
  return true;
}

std::optional<Fault> reach(const CommandBuffer& commands, Object* buffer) {
  if (!commands.evicted.contains(buffer)) return {};
  return Fault{kPageFault, "page fault: " + describe(buffer) + " is not resident"};
}

}  // namespace metal_double
