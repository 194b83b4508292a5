#include "run/inputs.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <random>

#include "base/try.h"
#include "run/npy.h"

namespace berth::cli {

using namespace internal;

namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// The size of a dimension that the model leaves open: by its name, otherwise by its index.
std::int64_t default_dim(const ort::TensorSpec& spec, std::size_t index) {
  const std::string symbol = lower(spec.symbols[index]);
  if (contains(symbol, "batch") || index == 0) return 1;
  if (contains(symbol, "sample")) return 16000;
  if (contains(symbol, "height") || contains(symbol, "width")) return 640;
  if (contains(symbol, "seq") || contains(symbol, "length") || contains(symbol, "token")) return 128;
  if (spec.shape.size() == 4) return index == 1 ? 3 : 640;
  return spec.shape.size() == 2 ? 128 : 80;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return "scalar";
  std::string text;
  for (const std::int64_t size : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(size);
  }
  return text;
}

template <class T>
void put(std::vector<std::byte>& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

void fill(ort::Tensor& tensor, std::mt19937_64& random) {
  const std::size_t n = tensor.bytes.size() / ort::element_bytes(tensor.element_type);
  const std::string name = lower(tensor.name);
  // Integers are usually indices or flags: small values are in range for any of them.
  const auto integer = [&]() -> std::int64_t {
    if (name == "sr" || contains(name, "sample_rate")) return 16000;
    if (contains(name, "mask")) return 1;
    if (contains(name, "type")) return 0;
    return static_cast<std::int64_t>(random() % 100);
  };
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
  for (std::size_t i = 0; i < n; ++i) {
    switch (tensor.element_type) {
      case ort::kElementF32: put(tensor.bytes, i, static_cast<float>(unit())); break;
      case ort::kElementF64: put(tensor.bytes, i, unit()); break;
      case ort::kElementF16: put(tensor.bytes, i, static_cast<std::uint16_t>(0x3800 | (random() & 0x3ff))); break;
      case ort::kElementBF16: put(tensor.bytes, i, static_cast<std::uint16_t>(0x3f00 | (random() & 0x7f))); break;
      case ort::kElementBool: put(tensor.bytes, i, static_cast<std::uint8_t>(random() & 1)); break;
      case ort::kElementI8: put(tensor.bytes, i, static_cast<std::int8_t>(integer() % 128)); break;
      case ort::kElementU8: put(tensor.bytes, i, static_cast<std::uint8_t>(random() & 0xff)); break;
      case ort::kElementI16: put(tensor.bytes, i, static_cast<std::int16_t>(integer())); break;
      case ort::kElementU16: put(tensor.bytes, i, static_cast<std::uint16_t>(integer())); break;
      case ort::kElementI32: put(tensor.bytes, i, static_cast<std::int32_t>(integer())); break;
      case ort::kElementU32: put(tensor.bytes, i, static_cast<std::uint32_t>(integer())); break;
      default: put(tensor.bytes, i, integer()); break;
    }
  }
}

std::uint64_t machine_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : SIZE_MAX;
}

Result<ort::Tensor> from_file(const ort::TensorSpec& spec, const std::string& path) {
  BERTH_TRY_ASSIGN(ort::Tensor tensor, read_npy(path));
  tensor.name = spec.name;
  if (tensor.element_type != spec.element_type)
    return refuse("input " + spec.name + " takes " + ort::element_name(spec.element_type) + ", " + path + " holds " +
                  ort::element_name(tensor.element_type));
  bool fits = tensor.shape.size() == spec.shape.size();
  for (std::size_t i = 0; fits && i < spec.shape.size(); ++i)
    fits = spec.shape[i] < 0 || spec.shape[i] == tensor.shape[i];
  if (!fits)
    return refuse("input " + spec.name + " takes shape " + shape_text(spec.shape) + " (-1: any), " + path + " has " +
                  shape_text(tensor.shape));
  return tensor;
}

}  // namespace

Error refuse(std::string text) {
  return Error::with_text(Code::kInvalidArgument, Layer::kProgram, std::move(text));
}

Result<void> set_shape(const std::vector<ort::TensorSpec>& specs, const std::vector<std::int64_t>& shape,
                       InputRequest& request) {
  const auto spec = std::find_if(specs.begin(), specs.end(), [](const ort::TensorSpec& each) {
    return std::any_of(each.shape.begin(), each.shape.end(), [](std::int64_t size) { return size < 0; });
  });
  if (spec == specs.end())
    return refuse("--shapes " + shape_text(shape) + ": the inputs of this model have fixed shapes; leave it out");
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < spec->shape.size(); ++i)
    if (spec->shape[i] < 0) open.push_back(i);
  const auto set = [&](std::size_t index, std::int64_t size) {
    if (!spec->symbols[index].empty()) request.dims[spec->symbols[index]] = size;
    request.dims[spec->name + "." + std::to_string(index)] = size;
  };
  bool fits = shape.size() <= open.size();
  if (fits) {
    for (std::size_t i = 0; i < shape.size(); ++i) set(open[open.size() - shape.size() + i], shape[i]);
  } else if (shape.size() == spec->shape.size()) {
    fits = true;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (spec->shape[i] < 0)
        set(i, shape[i]);
      else
        fits = fits && spec->shape[i] == shape[i];
    }
  }
  if (fits) return {};
  return refuse("--shapes " + shape_text(shape) + ": input " + spec->name + " takes " + shape_text(spec->shape) +
                " (-1: any); give up to " + std::to_string(open.size()) + " sizes, or all " +
                std::to_string(spec->shape.size()));
}

Result<std::vector<ort::Tensor>> make_inputs(const std::vector<ort::TensorSpec>& specs, const InputRequest& request) {
  std::vector<ort::Tensor> inputs;
  std::mt19937_64 random(request.seed);
  for (const ort::TensorSpec& spec : specs) {
    if (const auto file = request.files.find(spec.name); file != request.files.end()) {
      BERTH_TRY_ASSIGN(ort::Tensor tensor, from_file(spec, file->second));
      inputs.push_back(std::move(tensor));
      continue;
    }
    const std::size_t size = ort::element_bytes(spec.element_type);
    if (size == 0)
      return refuse("input " + spec.name + " holds " + ort::element_name(spec.element_type) +
                    " elements, which cannot be made up: no model with such inputs can be run here");
    ort::Tensor tensor{.name = spec.name, .element_type = spec.element_type, .shape = spec.shape, .bytes = {}};
    std::uint64_t bytes = size;
    bool overflow = false;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (tensor.shape[i] < 0) {
        tensor.shape[i] = default_dim(spec, i);
        for (const std::string& name : {spec.symbols[i], spec.name + "." + std::to_string(i)})
          if (const auto named = request.dims.find(name); !name.empty() && named != request.dims.end())
            tensor.shape[i] = named->second;
      }
      overflow = __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(tensor.shape[i]), &bytes) || overflow;
    }
    if (overflow || bytes > machine_bytes())
      return refuse("input " + spec.name + " of shape " + shape_text(tensor.shape) +
                    " would be larger than the memory of this machine; choose smaller sizes");
    tensor.bytes.resize(bytes);
    fill(tensor, random);
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

std::string describe_inputs(const std::vector<ort::Tensor>& inputs) {
  std::string text;
  for (const ort::Tensor& input : inputs) {
    if (!text.empty()) text += ", ";
    text += input.name + " " + shape_text(input.shape);
  }
  return text;
}

}  // namespace berth::cli
