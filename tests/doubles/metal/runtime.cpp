// Selectors, classes and the sending of messages. objc_msgSend does not know its arguments: it asks for the method and
// jumps there with every register that can hold an argument as it was.
#include <objc/runtime.h>

#include <deque>
#include <map>
#include <mutex>

#include "state.h"

#if !defined(__x86_64__)
#error "the Metal double sends messages on x86-64 only"
#endif

namespace metal_double {
namespace {

struct Tables {
  std::mutex mutex;  // guards the selectors; the types do not change once they are made
  std::map<std::string, objc_selector> selectors;
  std::map<std::string, Type> types;
  std::deque<Type> metas;
  Type* constant_string = nullptr;
};

Tables& raw_tables() {
  static auto* const tables = new Tables;
  return *tables;
}

Tables& tables() {
  static const bool filled = [] {
    add_foundation_types();
    add_device_types();
    add_buffer_types();
    add_queue_types();
    add_command_buffer_types();
    add_blit_types();
    add_compute_types();
    add_event_types();
    add_residency_types();
    add_library_types();
    raw_tables().constant_string = &raw_tables().types.at("NSConstantString");
    return true;
  }();
  static_cast<void>(filled);
  return raw_tables();
}

Object* do_retain(Object* self, Selector) {
  retain(self);
  return self;
}
void do_release(Object* self, Selector) {
  release(self);
}
Object* do_autorelease(Object* self, Selector) {
  return autorelease(self);
}
std::uintptr_t retain_count(Object* self, Selector) {
  const std::uint64_t both = self->references.load();
  return (both & 0xFFFFFFFF) + (both >> 32);
}
std::uintptr_t hash(Object* self, Selector) {
  return reinterpret_cast<std::uintptr_t>(self) >> 4;
}
bool is_equal(Object* self, Selector, const Object* other) {
  return self == other;
}
Object* description(Object* self, Selector) {
  return autorelease(make_string(describe(self)));
}
Object* do_nothing(Object* self, Selector) {
  return self;
}

bool absent(const Method& method) {
  return method.needs_residency && !has_residency_sets();
}

bool responds(Object* self, Selector, Selector asked) {
  const auto found = self->type->methods.find(asked);
  return found != self->type->methods.end() && !absent(found->second);
}
void* method_signature(Object*, Selector, Selector) {
  return nullptr;
}

// What a message to a dead object, or one that is not understood, does.
std::uintptr_t give_zero() {
  return 0;
}

std::uintptr_t refuse(Object*, Selector) {
  return 0;
}
std::uintptr_t refuse_init(Object* self, Selector) {
  release(self);
  return 0;
}
template <int N>
std::uintptr_t refuse_with_error(Object* self, Selector selector, Object** first, Object** second, Object** third,
                                 Object** fourth) {
  Object** const error[] = {first, second, third, fourth};
  if (error[N] != nullptr) {
    *error[N] = autorelease(make_error("MTLDoubleErrorDomain", 1,
                                       "the double was told to refuse " + self->type->name + " " + selector->name));
  }
  return 0;
}

Implementation refusal(Kind kind) {
  switch (kind) {
    case Kind::kInitialises: return reinterpret_cast<Implementation>(&refuse_init);
    case Kind::kErrorFirst: return reinterpret_cast<Implementation>(&refuse_with_error<0>);
    case Kind::kErrorSecond: return reinterpret_cast<Implementation>(&refuse_with_error<1>);
    case Kind::kErrorThird: return reinterpret_cast<Implementation>(&refuse_with_error<2>);
    case Kind::kErrorFourth: return reinterpret_cast<Implementation>(&refuse_with_error<3>);
    case Kind::kPlain:
    case Kind::kCreates: break;
  }
  return reinterpret_cast<Implementation>(&refuse);
}

}  // namespace

Selector selector_named(const char* name) {
  Tables& all = raw_tables();
  const std::lock_guard<std::mutex> guard(all.mutex);
  objc_selector& selector = all.selectors[name];
  if (selector.name.empty()) selector.name = name;
  return &selector;
}

Type* find_type(const char* name) {
  auto& types = tables().types;
  const auto found = types.find(name);
  return found == types.end() ? nullptr : &found->second;
}

Type& make_type(const char* name) {
  Tables& all = raw_tables();
  Type& type = all.types[name];
  Type& meta = all.metas.emplace_back();
  meta.name = name;
  meta.is_meta = true;
  meta.add("respondsToSelector:", reinterpret_cast<Implementation>(&responds), Kind::kPlain);
  type.meta = &meta;
  type.name = name;
  return type.on("retain", &do_retain)
      .on("release", &do_release)
      .on("autorelease", &do_autorelease)
      .on("retainCount", &retain_count)
      .on("hash", &hash)
      .on("isEqual:", &is_equal)
      .on("description", &description)
      .on("debugDescription", &description)
      .on("respondsToSelector:", &responds)
      .on("methodSignatureForSelector:", &method_signature)
      .on("init", &do_nothing, Kind::kInitialises);
}

Type& made_type(const char* name) {
  return raw_tables().types.at(name);
}

Type& Type::add(const char* selector, Implementation run, Kind kind) {
  Method& method = methods[selector_named(selector)];
  method.run = run;
  method.kind = kind;
  return *this;
}

Type& Type::with_residency(const char* selector) {
  methods.at(selector_named(selector)).needs_residency = true;
  return *this;
}

void for_each_method(const std::function<void(Type&, Selector, Method&)>& visit) {
  Tables& all = tables();
  for (auto& [name, type] : all.types) {
    for (auto& [selector, method] : type.methods) visit(type, selector, method);
    for (auto& [selector, method] : type.meta->methods) visit(*type.meta, selector, method);
  }
}

void for_each_type(const std::function<void(const Type&)>& visit) {
  for (const auto& entry : tables().types) visit(entry.second);
}

}  // namespace metal_double

#define DOUBLE_EXPORT extern "C" __attribute__((visibility("default")))

// The class of string constants that the compiler lays out: an address to recognise them by.
extern "C" {
__attribute__((visibility("default"))) int __CFConstantStringClassReference[24] = {};
}

// The method of a message, and everything that happens at every message. Called by the assembly below.
DOUBLE_EXPORT metal_double::Implementation metal_double_method(metal_double::Object* receiver,
                                                               metal_double::Selector selector) {
  using namespace metal_double;
  Type* type = receiver->type;
  if (static_cast<void*>(type) == static_cast<void*>(&__CFConstantStringClassReference)) {
    type = tables().constant_string;
  } else if (!type->is_meta && !is_alive(receiver)) {
    violation((selector->name == "release" ? "over-release: " : "use after release: ") + describe(receiver) +
              " was sent " + selector->name + " after its last reference went");
    return reinterpret_cast<Implementation>(&give_zero);
  } else if (type->is_meta && reinterpret_cast<Type*>(receiver)->needs_residency && !has_residency_sets()) {
    // The class of a newer OS. Its pointer would be nil there.
    count_nil_message();
    return reinterpret_cast<Implementation>(&give_zero);
  }
  const auto found = type->methods.find(selector);
  if (found == type->methods.end() || absent(found->second)) {
    violation("unrecognised: " + type->name + " does not understand " + selector->name);
    return reinterpret_cast<Implementation>(&give_zero);
  }
  Method& method = found->second;
  method.calls.fetch_add(1, std::memory_order_relaxed);
  if (method.kind != Kind::kPlain && told_to_fail(type->name, selector->name)) return refusal(method.kind);
  return method.run;
}

DOUBLE_EXPORT void metal_double_nil() {
  metal_double::count_nil_message();
}

// The registers that carry arguments are kept while the method is looked up. A nil receiver answers zero.
#define DOUBLE_TRAMPOLINE(name, receiver, selector) \
  ".globl " name                                    \
  "\n"                                              \
  ".type " name ", @function\n" name                \
  ":\n"                                             \
  "  .cfi_startproc\n"                              \
  "  endbr64\n"                                     \
  "  push %rbp\n"                                   \
  "  .cfi_def_cfa_offset 16\n"                      \
  "  .cfi_offset %rbp, -16\n"                       \
  "  mov %rsp, %rbp\n"                              \
  "  .cfi_def_cfa_register %rbp\n"                  \
  "  sub $192, %rsp\n"                              \
  "  movaps %xmm0, 0(%rsp)\n"                       \
  "  movaps %xmm1, 16(%rsp)\n"                      \
  "  movaps %xmm2, 32(%rsp)\n"                      \
  "  movaps %xmm3, 48(%rsp)\n"                      \
  "  movaps %xmm4, 64(%rsp)\n"                      \
  "  movaps %xmm5, 80(%rsp)\n"                      \
  "  movaps %xmm6, 96(%rsp)\n"                      \
  "  movaps %xmm7, 112(%rsp)\n"                     \
  "  mov %rdi, 128(%rsp)\n"                         \
  "  mov %rsi, 136(%rsp)\n"                         \
  "  mov %rdx, 144(%rsp)\n"                         \
  "  mov %rcx, 152(%rsp)\n"                         \
  "  mov %r8, 160(%rsp)\n"                          \
  "  mov %r9, 168(%rsp)\n"                          \
  "  mov %rax, 176(%rsp)\n"                         \
  "  test " receiver ", " receiver                  \
  "\n"                                              \
  "  je 1f\n"                                       \
  "  mov " selector                                 \
  ", %r10\n"                                        \
  "  mov " receiver                                 \
  ", %rdi\n"                                        \
  "  mov %r10, %rsi\n"                              \
  "  call metal_double_method@PLT\n"                \
  "  mov %rax, %r11\n"                              \
  "  movaps 0(%rsp), %xmm0\n"                       \
  "  movaps 16(%rsp), %xmm1\n"                      \
  "  movaps 32(%rsp), %xmm2\n"                      \
  "  movaps 48(%rsp), %xmm3\n"                      \
  "  movaps 64(%rsp), %xmm4\n"                      \
  "  movaps 80(%rsp), %xmm5\n"                      \
  "  movaps 96(%rsp), %xmm6\n"                      \
  "  movaps 112(%rsp), %xmm7\n"                     \
  "  mov 128(%rsp), %rdi\n"                         \
  "  mov 136(%rsp), %rsi\n"                         \
  "  mov 144(%rsp), %rdx\n"                         \
  "  mov 152(%rsp), %rcx\n"                         \
  "  mov 160(%rsp), %r8\n"                          \
  "  mov 168(%rsp), %r9\n"                          \
  "  mov 176(%rsp), %rax\n"                         \
  "  .cfi_remember_state\n"                         \
  "  leave\n"                                       \
  "  .cfi_def_cfa %rsp, 8\n"                        \
  "  jmp *%r11\n"                                   \
  "1:\n"                                            \
  "  .cfi_restore_state\n"                          \
  "  call metal_double_nil@PLT\n"                   \
  "  xor %eax, %eax\n"                              \
  "  xor %edx, %edx\n"                              \
  "  pxor %xmm0, %xmm0\n"                           \
  "  pxor %xmm1, %xmm1\n"                           \
  "  leave\n"                                       \
  "  .cfi_def_cfa %rsp, 8\n"                        \
  "  ret\n"                                         \
  "  .cfi_endproc\n"                                \
  ".size " name ", .-" name "\n"

__asm__(".text\n"  //
        DOUBLE_TRAMPOLINE("objc_msgSend", "%rdi", "%rsi") DOUBLE_TRAMPOLINE("objc_msgSend_fpret", "%rdi", "%rsi")
            DOUBLE_TRAMPOLINE("objc_msgSend_stret", "%rsi", "%rdx"));

DOUBLE_EXPORT SEL sel_registerName(const char* name) {
  return metal_double::selector_named(name);
}
DOUBLE_EXPORT const char* sel_getName(SEL selector) {
  return selector->name.c_str();
}
DOUBLE_EXPORT Class objc_lookUpClass(const char* name) {
  return reinterpret_cast<Class>(metal_double::find_type(name));
}
DOUBLE_EXPORT Class objc_getClass(const char* name) {
  return objc_lookUpClass(name);
}
DOUBLE_EXPORT Protocol* objc_getProtocol(const char* name) {
  return reinterpret_cast<Protocol*>(metal_double::find_type(name));
}
DOUBLE_EXPORT Class object_getClass(id object) {
  return object == nullptr ? nullptr : object->isa;
}
DOUBLE_EXPORT const char* class_getName(Class type) {
  return reinterpret_cast<metal_double::Type*>(type)->name.c_str();
}
DOUBLE_EXPORT const char* object_getClassName(id object) {
  return object == nullptr ? "nil" : class_getName(object->isa);
}
