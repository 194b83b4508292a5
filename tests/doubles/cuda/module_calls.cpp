// Modules and launches. The double runs no device code: it reads the names and parameters of a module's kernels, and
// a launch runs the host implementation that a test registered under the same name.
#include <elf.h>

#include <cctype>
#include <cstring>
#include <string_view>

#include "entry.h"

namespace cuda_double {

namespace {

// The size of a PTX parameter such as ".param .align 8 .b8 name[24]" or ".param .u64 .ptr .global name".
std::size_t ptx_parameter_bytes(std::string_view text) {
  std::size_t element = 0;
  for (const auto& [name, bytes] : {std::pair<std::string_view, std::size_t>{".b8", 1},
                                    {".u8", 1},
                                    {".s8", 1},
                                    {".b16", 2},
                                    {".u16", 2},
                                    {".s16", 2},
                                    {".f16", 2},
                                    {".b32", 4},
                                    {".u32", 4},
                                    {".s32", 4},
                                    {".f32", 4},
                                    {".b64", 8},
                                    {".u64", 8},
                                    {".s64", 8},
                                    {".f64", 8}}) {
    const std::size_t at = text.find(name);
    if (at == std::string_view::npos) continue;
    const std::size_t end = at + name.size();
    if (end < text.size() && std::isspace(static_cast<unsigned char>(text[end])) == 0) continue;
    element = bytes;
  }
  const std::size_t open = text.find('[');
  if (open == std::string_view::npos) return element;
  return element * std::stoul(std::string(text.substr(open + 1)));
}

bool read_ptx(std::string_view text, ModuleState& module) {
  if (text.find(".version") == std::string_view::npos || text.find(".target") == std::string_view::npos) return false;
  for (std::size_t at = text.find(".entry"); at != std::string_view::npos; at = text.find(".entry", at + 1)) {
    std::size_t name = at + 6;
    while (name < text.size() && std::isspace(static_cast<unsigned char>(text[name])) != 0) ++name;
    const std::size_t open = text.find_first_of("({", name);
    if (open == std::string_view::npos) return false;
    std::size_t end = open;
    while (end > name && std::isspace(static_cast<unsigned char>(text[end - 1])) != 0) --end;
    auto function = std::make_unique<FunctionState>();
    function->name = std::string(text.substr(name, end - name));
    if (text[open] == '(') {
      const std::size_t close = text.find(')', open);
      if (close == std::string_view::npos) return false;
      std::string_view list = text.substr(open + 1, close - open - 1);
      std::size_t offset = 0;
      while (list.find(".param") != std::string_view::npos) {
        const std::size_t comma = list.find(',');
        const std::size_t bytes = ptx_parameter_bytes(list.substr(0, comma));
        if (bytes == 0) return false;
        const std::size_t alignment = bytes >= 8 ? 8 : bytes;
        offset = (offset + alignment - 1) / alignment * alignment;
        function->parameter_offsets.push_back(offset);
        function->parameter_bytes.push_back(bytes);
        offset += bytes;
        if (comma == std::string_view::npos) break;
        list.remove_prefix(comma + 1);
      }
    }
    module.functions[function->name] = std::move(function);
  }
  return !module.functions.empty();
}

// In a cubin each kernel has a section ".nv.info.NAME" of attributes; attribute 0x17 describes one parameter.
bool read_cubin(const unsigned char* image, ModuleState& module) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  constexpr Elf64_Half kMachineCuda = 190;
  if (header.e_machine != kMachineCuda || header.e_shentsize != sizeof(Elf64_Shdr)) return false;
  const auto section = [&](std::size_t index) {
    Elf64_Shdr result;
    std::memcpy(&result, image + header.e_shoff + index * sizeof result, sizeof result);
    return result;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  constexpr std::string_view kPrefix = ".nv.info.";
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr info = section(i);
    const std::string_view name(reinterpret_cast<const char*>(image + names.sh_offset + info.sh_name));
    if (!name.starts_with(kPrefix)) continue;
    auto function = std::make_unique<FunctionState>();
    function->name = std::string(name.substr(kPrefix.size()));
    const unsigned char* at = image + info.sh_offset;
    const unsigned char* end = at + info.sh_size;
    while (at + 4 <= end) {
      std::uint16_t size = 0;
      std::memcpy(&size, at + 2, 2);
      const bool has_payload = at[0] == 0x04;
      if (has_payload && at[1] == 0x17 && at + 4 + 12 <= end) {
        std::uint16_t ordinal = 0;
        std::uint16_t offset = 0;
        std::uint32_t packed = 0;
        std::memcpy(&ordinal, at + 8, 2);
        std::memcpy(&offset, at + 10, 2);
        std::memcpy(&packed, at + 12, 4);
        if (function->parameter_bytes.size() <= ordinal) {
          function->parameter_bytes.resize(ordinal + 1u);
          function->parameter_offsets.resize(ordinal + 1u);
        }
        function->parameter_bytes[ordinal] = packed >> 18;
        function->parameter_offsets[ordinal] = offset;
      }
      at += 4 + (has_payload ? size : 0);
    }
    module.functions[function->name] = std::move(function);
  }
  return !module.functions.empty();
}

}  // namespace

bool read_module(const void* image, ModuleState& module) {
  const auto* bytes = static_cast<const unsigned char*>(image);
  if (std::memcmp(bytes, ELFMAG, SELFMAG) == 0) return read_cubin(bytes, module);
  return read_ptx(static_cast<const char*>(image), module);
}

}  // namespace cuda_double

namespace {

using cuda_double::FunctionState;
using cuda_double::ModuleState;
using cuda_double::Range;
using cuda_double::State;
using namespace berth::internal::cuda;  // NOLINT

const FunctionState* function_of(State& state, Function handle, const cuda_double::DeviceContext* context) {
  for (const auto& [module_handle, module] : state.modules) {
    if (module->context != context) continue;
    for (const auto& [name, function] : module->functions) {
      if (reinterpret_cast<Function>(function.get()) == handle) return function.get();
    }
  }
  return nullptr;
}

}  // namespace

namespace berth::internal::cuda {
extern "C" {

Status cuModuleLoadData(Module* handle, const void* image) {
  DOUBLE_ENTER_UNSAFE("cuModuleLoadData");
  if (image == nullptr) return state.misuse(kCall, "null image", kErrorInvalidValue);
  auto module = std::make_unique<ModuleState>();
  module->context = context;
  if (!cuda_double::read_module(image, *module)) return kErrorInvalidImage;
  *handle = reinterpret_cast<Module>(module.get());
  state.modules[*handle] = std::move(module);
  return kSuccess;
}

Status cuModuleUnload(Module handle) {
  DOUBLE_ENTER_UNSAFE("cuModuleUnload");
  if (state.modules.erase(handle) == 0) return state.misuse(kCall, "unknown module", kErrorInvalidHandle);
  return kSuccess;
}

Status cuModuleGetFunction(Function* handle, Module module, const char* name) {
  DOUBLE_ENTER_CONTEXT("cuModuleGetFunction");
  auto found = state.modules.find(module);
  if (found == state.modules.end()) return state.misuse(kCall, "unknown module", kErrorInvalidHandle);
  auto function = found->second->functions.find(name);
  if (function == found->second->functions.end()) return kErrorNotFound;
  *handle = reinterpret_cast<Function>(function->second.get());
  return kSuccess;
}

Status cuFuncGetParamInfo(Function handle, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  DOUBLE_ENTER_CONTEXT("cuFuncGetParamInfo");
  const FunctionState* function = function_of(state, handle, context);
  if (function == nullptr) return state.misuse(kCall, "unknown function", kErrorInvalidHandle);
  if (index >= function->parameter_bytes.size()) return kErrorInvalidValue;
  *offset = function->parameter_offsets[index];
  if (bytes != nullptr) *bytes = function->parameter_bytes[index];
  return kSuccess;
}

Status cuLaunchKernel(Function handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned, Stream stream_handle, void** parameters,
                      void** extra) {
  DOUBLE_ENTER_CONTEXT("cuLaunchKernel");
  auto stream = state.stream_of(stream_handle);
  if (stream == nullptr || stream->context != context)
    return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);
  if (const Status unusable = State::usable_stream(*stream); unusable != kSuccess) return unusable;
  const FunctionState* function = function_of(state, handle, context);
  if (function == nullptr) return state.misuse(kCall, "unknown function", kErrorInvalidHandle);
  if (grid_x * grid_y * grid_z == 0 || block_x * block_y * block_z == 0 || block_x * block_y * block_z > 1024) {
    return state.misuse(kCall, "bad grid or block", kErrorInvalidValue);
  }
  if (extra != nullptr) return state.misuse(kCall, "the double takes parameters one by one", kErrorNotSupported);
  auto implementation = state.kernels.find(function->name);
  if (implementation == state.kernels.end()) {
    return state.misuse(kCall, "no host implementation of " + function->name, kErrorNotSupported);
  }
  // Parameters are read now, as by the driver.
  std::vector<std::vector<unsigned char>> values;
  for (std::size_t i = 0; i < function->parameter_bytes.size(); ++i) {
    const auto* from = static_cast<const unsigned char*>(parameters[i]);
    values.emplace_back(from, from + function->parameter_bytes[i]);
  }
  std::vector<const void*> pointers;
  for (const auto& value : values) pointers.push_back(value.data());
  CudaDoubleRange touched[8];
  const int count = implementation->second.ranges(pointers.data(), touched);
  std::vector<Range> ranges;
  for (int i = 0; i < count; ++i) {
    const auto& range = touched[i];
    if (!state.usable(range.pointer, range.bytes, context, false)) {
      // A kernel that goes astray is noticed when it runs, and takes the context with it.
      state.violation("misuse: cuLaunchKernel: " + function->name + " touches " +
                      cuda_double::spell(range.pointer, range.bytes));
      state.submit(kCall, stream, {}, [](auto&, bool) { return kErrorIllegalAddress; });
      return kSuccess;
    }
    ranges.push_back({range.pointer, range.bytes, range.writes != 0});
  }
  const CudaDoubleKernel kernel = implementation->second;
  auto submitted = ranges;
  state.submit(
      kCall, stream, std::move(submitted),
      [&state, kernel, ranges, values, grid_x, grid_y, grid_z, block_x, block_y, block_z](auto& held, bool raced) {
        std::vector<State::Piece> keep;
        std::vector<void*> hosts;
        for (const Range& range : ranges) {
          auto pieces = state.pieces(range.begin, range.bytes);
          if (range.bytes != 0 && pieces.size() != 1) return kErrorIllegalAddress;
          hosts.push_back(pieces.empty() ? nullptr : pieces[0].host);
          if (!pieces.empty()) keep.push_back(std::move(pieces[0]));
        }
        std::vector<const void*> arguments;
        for (const auto& value : values) arguments.push_back(value.data());
        const CudaDoubleLaunch launch{
            {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, arguments.data(), hosts.data()};
        held.unlock();
        if (!raced) kernel.run(&launch);
        held.lock();
        return kSuccess;
      });
  return kSuccess;
}

}  // extern "C"
}  // namespace berth::internal::cuda
