// As much of Foundation as metal-cpp's Metal needs: strings, errors, arrays, dictionaries, URLs, the version of the
// OS, and libdispatch's data.
#include <objc/runtime.h>

#include <cstring>

#include "state.h"

#define DOUBLE_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" int __CFConstantStringClassReference[24];

namespace metal_double {

void add_pool_type();

namespace {

struct StringBody : Body {
  explicit StringBody(std::string words = {}) : text(std::move(words)) {}
  std::string text;
};

// As the compiler lays out a string constant.
struct Constant {
  void* isa;
  int flags;
  const char* text;
  long length;
};

const char* characters(Object* string) {
  return is_constant(string) ? reinterpret_cast<Constant*>(string)->text : body<StringBody>(string).text.c_str();
}

Object* string_alloc(Object*, Selector) {
  return make_string("");
}
Object* string_empty(Object*, Selector) {
  return autorelease(make_string(""));
}
Object* string_with_string(Object*, Selector, Object* other) {
  return autorelease(make_string(text_of(other)));
}
// Foundation makes no string of bytes that are not UTF-8. Overlong forms and surrogates are let through here.
bool is_utf8(const char* text) {
  for (; *text != 0; ++text) {
    const auto first = static_cast<unsigned char>(*text);
    int rest = first < 0x80 ? 0 : first < 0xC2 ? -1 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : first < 0xF5 ? 3 : -1;
    if (rest < 0) return false;
    for (; rest > 0; --rest)
      if ((static_cast<unsigned char>(*++text) & 0xC0) != 0x80) return false;
  }
  return true;
}
Object* string_with_text(Object*, Selector, const char* text, std::uintptr_t) {
  if (text != nullptr && !is_utf8(text)) return nullptr;
  return autorelease(make_string(text == nullptr ? "" : text));
}
Object* string_with_utf8(Object*, Selector, const char* text) {
  return autorelease(make_string(text));
}
Object* string_init_text(Object* self, Selector, const char* text, std::uintptr_t) {
  body<StringBody>(self).text = text;
  return self;
}
Object* string_init_string(Object* self, Selector, Object* other) {
  body<StringBody>(self).text = text_of(other);
  return self;
}
Object* string_init_bytes(Object* self, Selector, void* bytes, std::uintptr_t length, std::uintptr_t, bool frees) {
  body<StringBody>(self).text.assign(static_cast<const char*>(bytes), length);
  if (frees) std::free(bytes);
  return self;
}
const char* string_utf8(Object* self, Selector) {
  return characters(self);
}
const char* string_c(Object* self, Selector, std::uintptr_t) {
  return characters(self);
}
std::uintptr_t string_length(Object* self, Selector) {
  return std::strlen(characters(self));
}
std::uintptr_t string_length_in(Object* self, Selector, std::uintptr_t) {
  return std::strlen(characters(self));
}
unsigned short string_character(Object* self, Selector, std::uintptr_t index) {
  return static_cast<unsigned char>(characters(self)[index]);
}
bool string_equal(Object* self, Selector, Object* other) {
  return other != nullptr && std::string_view(characters(self)) == text_of(other);
}
Object* string_append(Object* self, Selector, Object* other) {
  return autorelease(make_string(characters(self) + text_of(other)));
}
Object* string_copy(Object* self, Selector) {
  return make_string(characters(self));
}
Object* string_self(Object* self, Selector) {
  return self;
}
std::uintptr_t string_hash(Object* self, Selector) {
  return std::hash<std::string_view>{}(characters(self));
}

void add_string_methods(Type& type) {
  type.on("UTF8String", &string_utf8)
      .on("cStringUsingEncoding:", &string_c)
      .on("fileSystemRepresentation", &string_utf8)
      .on("length", &string_length)
      .on("lengthOfBytesUsingEncoding:", &string_length_in)
      .on("maximumLengthOfBytesUsingEncoding:", &string_length_in)
      .on("characterAtIndex:", &string_character)
      .on("isEqualToString:", &string_equal)
      .on("isEqual:", &string_equal)
      .on("hash", &string_hash)
      .on("stringByAppendingString:", &string_append)
      .on("copy", &string_copy, Kind::kCreates)
      .on("description", &string_self);
}

struct ErrorBody : Body {
  Held domain;
  std::int64_t code = 0;
  Held info;
  Held text;
};

struct DictionaryBody : Body {
  std::vector<std::pair<Held, Held>> entries;
};

Object* find_in(Object* dictionary, std::string_view key) {
  for (const auto& entry : body<DictionaryBody>(dictionary).entries) {
    if (text_of(entry.first.get()) == key) return entry.second.get();
  }
  return nullptr;
}

constexpr const char* kDescriptionKey = "NSLocalizedDescription";

Object* error_alloc(Object*, Selector) {
  return create("NSError", new ErrorBody);
}
Object* error_init(Object* self, Selector, Object* domain, std::intptr_t code, Object* info) {
  auto& error = body<ErrorBody>(self);
  error.domain = held_string(text_of(domain));
  error.code = code;
  error.info = Held(info);
  Object* text = info == nullptr ? nullptr : find_in(info, kDescriptionKey);
  error.text = held_string(text != nullptr ? text_of(text)
                                           : "The operation couldn't be completed. (" + text_of(domain) + " error " +
                                                 std::to_string(code) + ".)");
  return self;
}
Object* error_with(Object*, Selector, Object* domain, std::intptr_t code, Object* info) {
  return autorelease(error_init(create("NSError", new ErrorBody), nullptr, domain, code, info));
}
std::intptr_t error_code(Object* self, Selector) {
  return body<ErrorBody>(self).code;
}
Object* error_domain(Object* self, Selector) {
  return body<ErrorBody>(self).domain.get();
}
Object* error_info(Object* self, Selector) {
  return body<ErrorBody>(self).info.get();
}
Object* error_text(Object* self, Selector) {
  return body<ErrorBody>(self).text.get();
}
Object* error_nothing(Object*, Selector) {
  return nullptr;
}

struct ArrayBody : Body {
  std::vector<Held> members;
};

Object* array_alloc(Object*, Selector) {
  return make_array({});
}
Object* array_empty(Object*, Selector) {
  return autorelease(make_array({}));
}
Object* array_with_one(Object*, Selector, Object* member) {
  return autorelease(make_array({member}));
}
Object* array_with(Object*, Selector, Object* const* members, std::uintptr_t count) {
  return autorelease(make_array({members, members + count}));
}
Object* array_init(Object* self, Selector, Object* const* members, std::uintptr_t count) {
  for (std::uintptr_t i = 0; i < count; ++i) body<ArrayBody>(self).members.emplace_back(members[i]);
  return self;
}
std::uintptr_t array_count(Object* self, Selector) {
  return body<ArrayBody>(self).members.size();
}
Object* array_at(Object* self, Selector, std::uintptr_t index) {
  const auto& members = body<ArrayBody>(self).members;
  if (index < members.size()) return members[index].get();
  violation("range: " + describe(self) + " has " + std::to_string(members.size()) + " members, and no index " +
            std::to_string(index));
  return nullptr;
}

Object* dictionary_alloc(Object*, Selector) {
  return create("NSDictionary", new DictionaryBody);
}
Object* dictionary_init(Object* self, Selector, Object* const* values, Object* const* keys, std::uintptr_t count) {
  for (std::uintptr_t i = 0; i < count; ++i) {
    body<DictionaryBody>(self).entries.emplace_back(Held(keys[i]), Held(values[i]));
  }
  return self;
}
Object* dictionary_empty(Object*, Selector) {
  return autorelease(dictionary_alloc(nullptr, nullptr));
}
Object* dictionary_with_one(Object*, Selector, Object* value, Object* key) {
  return autorelease(dictionary_init(dictionary_alloc(nullptr, nullptr), nullptr, &value, &key, 1));
}
Object* dictionary_with(Object*, Selector, Object* const* values, Object* const* keys, std::uintptr_t count) {
  return autorelease(dictionary_init(dictionary_alloc(nullptr, nullptr), nullptr, values, keys, count));
}
Object* dictionary_find(Object* self, Selector, Object* key) {
  return find_in(self, text_of(key));
}
std::uintptr_t dictionary_count(Object* self, Selector) {
  return body<DictionaryBody>(self).entries.size();
}

Object* url_alloc(Object*, Selector) {
  return create("NSURL", new StringBody);
}
Object* url_file(Object*, Selector, Object* path) {
  return autorelease(create("NSURL", new StringBody(text_of(path))));
}

struct Version {
  std::intptr_t major;
  std::intptr_t minor;
  std::intptr_t patch;
} __attribute__((packed));

Version os_version() {
  return {has_residency_sets() ? 15 : 14, 0, 0};
}
Object* process_info(Object*, Selector) {
  return autorelease(create("NSProcessInfo", new Body));
}
Version process_version(Object*, Selector) {
  return os_version();
}
bool process_at_least(Object*, Selector, Version asked) {
  return os_version().major >= asked.major;
}

struct DataBody : Body {
  ~DataBody() override {
    if (destructor) destructor();
  }
  std::string copy;
  std::string_view bytes;
  Callback destructor;
};

Object* constant_retain(Object* self, Selector) {
  return self;
}
void constant_release(Object*, Selector) {}

}  // namespace

void add_foundation_types() {
  add_pool_type();
  make_type("NSObject");
  Type& string = make_type("NSString");
  string.on_class("alloc", &string_alloc, Kind::kCreates)
      .on_class("string", &string_empty, Kind::kCreates)
      .on_class("stringWithString:", &string_with_string, Kind::kCreates)
      .on_class("stringWithCString:encoding:", &string_with_text, Kind::kCreates)
      .on_class("stringWithUTF8String:", &string_with_utf8, Kind::kCreates)
      .on("initWithCString:encoding:", &string_init_text, Kind::kInitialises)
      .on("initWithString:", &string_init_string, Kind::kInitialises)
      .on("initWithBytesNoCopy:length:encoding:freeWhenDone:", &string_init_bytes, Kind::kInitialises);
  add_string_methods(string);
  Type& constant = make_type("NSConstantString");
  add_string_methods(constant);
  constant.on("retain", &constant_retain).on("release", &constant_release).on("autorelease", &constant_retain);
  make_type("NSError")
      .on_class("alloc", &error_alloc, Kind::kCreates)
      .on_class("errorWithDomain:code:userInfo:", &error_with, Kind::kCreates)
      .on("initWithDomain:code:userInfo:", &error_init, Kind::kInitialises)
      .on("code", &error_code)
      .on("domain", &error_domain)
      .on("userInfo", &error_info)
      .on("localizedDescription", &error_text)
      .on("localizedFailureReason", &error_nothing)
      .on("localizedRecoverySuggestion", &error_nothing);
  make_type("NSArray")
      .on_class("alloc", &array_alloc, Kind::kCreates)
      .on_class("array", &array_empty, Kind::kCreates)
      .on_class("arrayWithObject:", &array_with_one, Kind::kCreates)
      .on_class("arrayWithObjects:count:", &array_with, Kind::kCreates)
      .on("initWithObjects:count:", &array_init, Kind::kInitialises)
      .on("count", &array_count)
      .on("objectAtIndex:", &array_at);
  make_type("NSDictionary")
      .on_class("alloc", &dictionary_alloc, Kind::kCreates)
      .on_class("dictionary", &dictionary_empty, Kind::kCreates)
      .on_class("dictionaryWithObject:forKey:", &dictionary_with_one, Kind::kCreates)
      .on_class("dictionaryWithObjects:forKeys:count:", &dictionary_with, Kind::kCreates)
      .on("initWithObjects:forKeys:count:", &dictionary_init, Kind::kInitialises)
      .on("objectForKey:", &dictionary_find)
      .on("count", &dictionary_count);
  make_type("NSURL")
      .on_class("alloc", &url_alloc, Kind::kCreates)
      .on_class("fileURLWithPath:", &url_file, Kind::kCreates)
      .on("initFileURLWithPath:", &string_init_string, Kind::kInitialises)
      .on("initWithString:", &string_init_string, Kind::kInitialises)
      .on("fileSystemRepresentation", &string_utf8);
  make_type("NSProcessInfo")
      .on_class("processInfo", &process_info)
      .on("operatingSystemVersion", &process_version)
      .on("isOperatingSystemAtLeastVersion:", &process_at_least);
  make_type("OS_dispatch_data");
  make_type("OS_dispatch_queue");
}

Object* make_string(std::string text) {
  return create("NSString", new StringBody(std::move(text)));
}

Held held_string(std::string text) {
  Object* string = make_string(std::move(text));
  Held held(string);
  release(string);
  return held;
}

Object* make_error(const char* domain, std::int64_t code, std::string text) {
  auto* error = new ErrorBody;
  error->domain = held_string(domain);
  error->code = code;
  error->text = held_string(std::move(text));
  return create("NSError", error);
}

Object* make_array(const std::vector<Object*>& members) {
  auto* array = new ArrayBody;
  for (Object* member : members) array->members.emplace_back(member);
  return create("NSArray", array);
}

std::string text_of(Object* string) {
  if (string == nullptr) return "";
  if (is_constant(string) || expect(string, "NSString", "a string")) return characters(string);
  return "";
}

std::string path_of(Object* url) {
  return expect(url, "NSURL", "a file's URL") ? body<StringBody>(url).text : std::string();
}

std::string_view bytes_of(Object* data) {
  return expect(data, "OS_dispatch_data", "a library's data") ? body<DataBody>(data).bytes : std::string_view();
}

namespace {

Object* constant_key(const char* text) {
  auto* constant = new Constant{&__CFConstantStringClassReference, 0, text, static_cast<long>(std::strlen(text))};
  return reinterpret_cast<Object*>(constant);
}

}  // namespace
}  // namespace metal_double

using metal_double::Object;

extern "C" {
__attribute__((visibility("default"))) Object* NSLocalizedDescriptionKey =
    metal_double::constant_key("NSLocalizedDescription");
__attribute__((visibility("default"))) Object* NSCocoaErrorDomain = metal_double::constant_key("NSCocoaErrorDomain");
__attribute__((visibility("default"))) Object* NSPOSIXErrorDomain = metal_double::constant_key("NSPOSIXErrorDomain");
}

DOUBLE_EXPORT const void* __CFStringMakeConstantString(const char* text) {
  return metal_double::constant_key(text);
}

DOUBLE_EXPORT Object* dispatch_queue_create(const char*, void*) {
  return metal_double::create("OS_dispatch_queue", new metal_double::Body);
}
DOUBLE_EXPORT void dispatch_retain(Object* object) {
  metal_double::retain(object);
}
DOUBLE_EXPORT void dispatch_release(Object* object) {
  metal_double::release(object);
}
DOUBLE_EXPORT Object* dispatch_data_create(const void* bytes, std::size_t size, Object*, const void* destructor) {
  auto* data = new metal_double::DataBody;
  if (destructor == nullptr) {
    data->copy.assign(static_cast<const char*>(bytes), size);
    data->bytes = data->copy;
  } else {
    data->bytes = {static_cast<const char*>(bytes), size};
    data->destructor = metal_double::Callback(destructor);
  }
  return metal_double::create("OS_dispatch_data", data);
}
