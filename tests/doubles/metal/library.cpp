// MTLLibrary, MTLFunction and pipelines. The double compiles nothing: it finds the kernels that a source declares, or
// the names in a compiled library, and runs the host functions that a test has registered under those names.
#include "library.h"

#include <cctype>
#include <cstring>
#include <fstream>
#include <sstream>

namespace metal_double {
namespace {

constexpr const char* kDomain = "MTLLibraryErrorDomain";
constexpr std::int64_t kCompileFailure = 3;
constexpr std::int64_t kFunctionNotFound = 5;

struct Library : Body {
  Held device;
  std::set<std::string> kernels;
  std::string label;
};

struct Function : Body {
  Held device;
  Held name;
  std::string text;
};

struct CompileOptions : Body {};

Object* refuse(Object** error, std::int64_t code, std::string text) {
  if (error != nullptr) *error = autorelease(make_error(kDomain, code, std::move(text)));
  return nullptr;
}

// The source with its comments and texts made blank, so that only code is left.
std::string code_of(const std::string& source) {
  std::string code = source;
  const auto blank = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to && i < code.size(); ++i) {
      if (code[i] != '\n') code[i] = ' ';
    }
  };
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code.compare(i, 2, "//") == 0) {
      const std::size_t end = std::min(code.find('\n', i), code.size());
      blank(i, end);
    } else if (code.compare(i, 2, "/*") == 0) {
      const std::size_t end = code.find("*/", i + 2);
      blank(i, end == std::string::npos ? code.size() : end + 2);
    } else if (code[i] == '"') {
      const std::size_t end = code.find('"', i + 1);
      blank(i, end == std::string::npos ? code.size() : end + 1);
    }
  }
  return code;
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

std::string place_in(const std::string& code, std::size_t at) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i < at && i < code.size(); ++i) {
    column = code[i] == '\n' ? 1 : column + 1;
    line += code[i] == '\n' ? 1 : 0;
  }
  return "program_source:" + std::to_string(line) + ":" + std::to_string(column) + ": error: ";
}

// What is wrong with the source, or "".
std::string complaint_about(const std::string& code) {
  std::vector<std::pair<char, std::size_t>> open;
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    if (c == '(' || c == '{' || c == '[') open.emplace_back(c, i);
    if (c != ')' && c != '}' && c != ']') continue;
    const char matching = c == ')' ? '(' : c == '}' ? '{' : '[';
    if (open.empty() || open.back().first != matching) return place_in(code, i) + "extraneous '" + c + "'";
    open.pop_back();
  }
  if (!open.empty()) return place_in(code, code.size()) + "expected a match to this '" + open.back().first + "'";
  return "";
}

// The names N of `kernel void N(` and `[[kernel]] void N(`.
std::set<std::string> kernels_in(const std::string& code) {
  std::istringstream words([&] {
    std::string spaced;
    for (const char c : code) {
      if (is_word(c)) {
        spaced += c;
      } else {
        spaced += ' ';
        if (c == '(') spaced += "( ";
      }
    }
    return spaced;
  }());
  std::set<std::string> names;
  std::string before[3];
  for (std::string word; words >> word;) {
    if (word == "(" && before[0] == "kernel" && before[1] == "void") names.insert(before[2]);
    before[0] = std::move(before[1]);
    before[1] = std::move(before[2]);
    before[2] = word;
  }
  return names;
}

Object* make_library(Object* device, std::set<std::string> kernels) {
  auto* library = new Library;
  library->device = Held(device);
  library->kernels = std::move(kernels);
  return create("MTLLibrary", library);
}

Object* from_source(Object* self, Selector, Object* source, Object* options, Object** error) {
  if (options != nullptr && !expect(options, "MTLCompileOptions", "compile options")) return nullptr;
  const std::string code = code_of(text_of(source));
  if (code.find_first_not_of(" \t\r\n") == std::string::npos) {
    return refuse(error, kCompileFailure, "program_source:1:1: error: the source is empty");
  }
  if (const std::string complaint = complaint_about(code); !complaint.empty()) {
    return refuse(error, kCompileFailure, complaint);
  }
  return make_library(self, kernels_in(code));
}

// A compiled library starts with "MTLB" and has its functions as records: "NAME", a length of two bytes, the name and a
// zero byte that the length includes.
Object* from_bytes(Object* self, std::string_view bytes, Object** error) {
  if (!bytes.starts_with("MTLB")) return refuse(error, 1, "Invalid library file");
  std::set<std::string> names;
  for (std::size_t at = bytes.find("NAME"); at != std::string_view::npos; at = bytes.find("NAME", at + 4)) {
    if (at + 6 > bytes.size()) break;
    const std::size_t length =
        static_cast<unsigned char>(bytes[at + 4]) + std::size_t{256} * static_cast<unsigned char>(bytes[at + 5]);
    if (length < 2 || length > bytes.size() - at - 6) continue;
    const std::string_view name = bytes.substr(at + 6, length - 1);
    if (bytes[at + 6 + length - 1] == '\0') names.emplace(name);
  }
  return make_library(self, std::move(names));
}

Object* from_data(Object* self, Selector, Object* data, Object** error) {
  return from_bytes(self, bytes_of(data), error);
}

Object* from_path(Object* self, const std::string& path, Object** error) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return refuse(error, 6, "library not found: " + path);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return from_bytes(self, bytes, error);
}

Object* from_url(Object* self, Selector, Object* url, Object** error) {
  return from_path(self, path_of(url), error);
}
Object* from_file(Object* self, Selector, Object* path, Object** error) {
  return from_path(self, text_of(path), error);
}

Object* new_function(Object* self, Selector, Object* name) {
  auto& library = body<Library>(self);
  const std::string text = text_of(name);
  if (!library.kernels.contains(text)) return nullptr;
  auto* function = new Function;
  function->device = library.device;
  function->text = text;
  function->name = held_string(text);
  return create("MTLFunction", function);
}

Object* function_names(Object* self, Selector) {
  std::vector<Object*> names;
  for (const std::string& name : body<Library>(self).kernels) names.push_back(make_string(name));
  Object* array = make_array(names);
  for (Object* name : names) release(name);
  return autorelease(array);
}

Object* library_device(Object* self, Selector) {
  return body<Library>(self).device.get();
}
Object* function_name(Object* self, Selector) {
  return body<Function>(self).name.get();
}
Object* function_device(Object* self, Selector) {
  return body<Function>(self).device.get();
}
std::uintptr_t function_type(Object*, Selector) {
  return 3;
}

Object* new_pipeline(Object* self, Selector, Object* function, Object** error) {
  if (!expect(function, "MTLFunction", "a pipeline's function")) {
    return refuse(error, kFunctionNotFound, "a pipeline needs a function");
  }
  auto& source = body<Function>(function);
  if (source.device.get() != self) {
    violation("wrong device: " + describe(function) + " is of another device than the pipeline");
    return refuse(error, kFunctionNotFound, "the function is of another device");
  }
  State& state = State::get();
  auto* pipeline = new Pipeline;
  {
    const Guard guard(state.mutex);
    const auto found = state.kernels.find(source.text);
    if (found != state.kernels.end()) pipeline->run = found->second.run;
  }
  if (pipeline->run == nullptr) {
    delete pipeline;
    return refuse(error, kFunctionNotFound, "no host function is registered for the kernel " + source.text);
  }
  pipeline->device = Held(self);
  pipeline->name = source.text;
  return create("MTLComputePipelineState", pipeline);
}

Object* pipeline_device(Object* self, Selector) {
  return body<Pipeline>(self).device.get();
}
std::uintptr_t most_threads(Object*, Selector) {
  return kMostThreads;
}
std::uintptr_t width(Object*, Selector) {
  return 32;
}
std::uintptr_t no_memory(Object*, Selector) {
  return 0;
}

Object* options_alloc(Object*, Selector) {
  return create("MTLCompileOptions", new CompileOptions);
}
void set_option(Object*, Selector, std::uintptr_t) {}

}  // namespace

void add_library_types() {
  made_type("MTLDevice")
      .on("newLibraryWithSource:options:error:", &from_source, Kind::kErrorThird)
      .on("newLibraryWithData:error:", &from_data, Kind::kErrorSecond)
      .on("newLibraryWithURL:error:", &from_url, Kind::kErrorSecond)
      .on("newLibraryWithFile:error:", &from_file, Kind::kErrorSecond)
      .on("newComputePipelineStateWithFunction:error:", &new_pipeline, Kind::kErrorSecond);
  make_type("MTLLibrary")
      .on("newFunctionWithName:", &new_function, Kind::kCreates)
      .on("functionNames", &function_names)
      .on("device", &library_device)
      .on("label", &get_label<Library>)
      .on("setLabel:", &set_label<Library>);
  make_type("MTLFunction").on("name", &function_name).on("device", &function_device).on("functionType", &function_type);
  make_type("MTLComputePipelineState")
      .on("device", &pipeline_device)
      .on("maxTotalThreadsPerThreadgroup", &most_threads)
      .on("threadExecutionWidth", &width)
      .on("staticThreadgroupMemoryLength", &no_memory);
  make_type("MTLCompileOptions")
      .on_class("alloc", &options_alloc, Kind::kCreates)
      .on("setLanguageVersion:", &set_option)
      .on("setFastMathEnabled:", &set_option)
      .on("setMathMode:", &set_option);
}

}  // namespace metal_double
