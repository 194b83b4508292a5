#include "system_faults/system_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <vector>

namespace berth::test {
namespace {

struct State {
  std::atomic<bool> armed{false};
  std::atomic<SystemFault> fault{SystemFault::kNone};
  std::atomic<std::size_t> number{0}, seen{0}, largest{0};
  std::mutex mutex;
  std::string faulted;
  std::function<void(const std::string&, int)> before_open;
  // Files that were created while armed: a second descriptor, and how many of the bytes are flushed.
  struct Created {
    int descriptor;
    off_t flushed;
  };
  std::vector<Created> created;
};

State& state() {
  static State instance;
  return instance;
}

enum class Signals { kIgnored, kInterrupt };

}  // namespace

// Used by the functions below, which are outside of the namespace.
bool gets_fault(const char* call, int reason, Signals signals);
void note_created(int descriptor);
void note_flushed(int descriptor);
std::size_t at_most(std::size_t bytes);
void call_before_open(const char* path, int flags);

}  // namespace berth::test

using berth::test::at_most;
using berth::test::gets_fault;
using berth::test::Signals;

// NOLINTBEGIN: the names are the linker's.
extern "C" {

int __real_open(const char*, int, ...);
int __real_close(int);
ssize_t __real_read(int, void*, size_t);
ssize_t __real_write(int, const void*, size_t);
ssize_t __real_pread(int, void*, size_t, off_t);
ssize_t __real_preadv(int, const iovec*, int, off_t);
ssize_t __real_pwrite(int, const void*, size_t, off_t);
int __real_fsync(int);
int __real_fchmod(int, mode_t);
int __real_fstat(int, struct stat*);
int __real_stat(const char*, struct stat*);
off_t __real_lseek(int, off_t, int);
int __real_ftruncate(int, off_t);
int __real_rename(const char*, const char*);
void* __real_mmap(void*, size_t, int, int, int, off_t);
int __real_mprotect(void*, size_t, int);
int __real_madvise(void*, size_t, int);
int __real_mlock(const void*, size_t);
int __real_mlock2(const void*, size_t, unsigned);
int __real_fallocate(int, int, off_t, off_t);
long __real_syscall(long, ...);
FILE* __real_fopen(const char*, const char*);
size_t __real_fwrite(const void*, size_t, size_t, FILE*);
int __real_fflush(FILE*);
int __real_mkostemp(char*, int);
char* __real_mkdtemp(char*);
int __real_flock(int, int);
int __real_pipe(int*);
pid_t __real_fork();
void* __real_dlopen(const char*, int);
void* __real_dlsym(void*, const char*);
int __real_posix_memalign(void**, size_t, size_t);

int __wrap_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  berth::test::call_before_open(path, flags);
  if (gets_fault("open", EMFILE, Signals::kIgnored)) return -1;
  const int descriptor = __real_open(path, flags, mode);
  if (descriptor >= 0 && (flags & O_CREAT) != 0) berth::test::note_created(descriptor);
  return descriptor;
}
int __wrap_close(int descriptor) {
  const bool fails = gets_fault("close", EIO, Signals::kIgnored);
  const int closed = __real_close(descriptor);  // the descriptor goes even if close() fails
  if (fails) errno = EIO;
  return fails ? -1 : closed;
}
ssize_t __wrap_read(int descriptor, void* into, size_t bytes) {
  if (gets_fault("read", EIO, Signals::kInterrupt)) return -1;
  return __real_read(descriptor, into, at_most(bytes));
}
ssize_t __wrap_write(int descriptor, const void* from, size_t bytes) {
  if (gets_fault("write", ENOSPC, Signals::kInterrupt)) return -1;
  return __real_write(descriptor, from, at_most(bytes));
}
ssize_t __wrap_pread(int descriptor, void* into, size_t bytes, off_t at) {
  if (gets_fault("pread", EIO, Signals::kInterrupt)) return -1;
  return __real_pread(descriptor, into, at_most(bytes), at);
}
ssize_t __wrap_preadv(int descriptor, const iovec* into, int count, off_t at) {
  if (gets_fault("preadv", EIO, Signals::kInterrupt)) return -1;
  if (at_most(SIZE_MAX) == SIZE_MAX) return __real_preadv(descriptor, into, count, at);
  return __real_pread(descriptor, into->iov_base, at_most(into->iov_len), at);
}
ssize_t __wrap_pwrite(int descriptor, const void* from, size_t bytes, off_t at) {
  if (gets_fault("pwrite", ENOSPC, Signals::kInterrupt)) return -1;
  return __real_pwrite(descriptor, from, at_most(bytes), at);
}
int __wrap_fsync(int descriptor) {
  if (gets_fault("fsync", EIO, Signals::kIgnored)) return -1;
  const int flushed = __real_fsync(descriptor);
  berth::test::note_flushed(descriptor);
  return flushed;
}
int __wrap_fchmod(int descriptor, mode_t mode) {
  return gets_fault("fchmod", EPERM, Signals::kIgnored) ? -1 : __real_fchmod(descriptor, mode);
}
int __wrap_fstat(int descriptor, struct stat* status) {
  return gets_fault("fstat", EIO, Signals::kIgnored) ? -1 : __real_fstat(descriptor, status);
}
int __wrap_stat(const char* path, struct stat* status) {
  return gets_fault("stat", EACCES, Signals::kIgnored) ? -1 : __real_stat(path, status);
}
off_t __wrap_lseek(int descriptor, off_t at, int from) {
  return gets_fault("lseek", EIO, Signals::kIgnored) ? -1 : __real_lseek(descriptor, at, from);
}
int __wrap_ftruncate(int descriptor, off_t size) {
  return gets_fault("ftruncate", EIO, Signals::kIgnored) ? -1 : __real_ftruncate(descriptor, size);
}
int __wrap_rename(const char* from, const char* to) {
  return gets_fault("rename", EACCES, Signals::kIgnored) ? -1 : __real_rename(from, to);
}
void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int descriptor, off_t at) {
  if (gets_fault("mmap", ENOMEM, Signals::kIgnored)) return MAP_FAILED;
  return __real_mmap(address, bytes, protection, flags, descriptor, at);
}
int __wrap_mprotect(void* address, size_t bytes, int protection) {
  return gets_fault("mprotect", ENOMEM, Signals::kIgnored) ? -1 : __real_mprotect(address, bytes, protection);
}
int __wrap_madvise(void* address, size_t bytes, int advice) {
  return gets_fault("madvise", EINVAL, Signals::kIgnored) ? -1 : __real_madvise(address, bytes, advice);
}
int __wrap_mlock(const void* address, size_t bytes) {
  return gets_fault("mlock", ENOMEM, Signals::kIgnored) ? -1 : __real_mlock(address, bytes);
}
int __wrap_mlock2(const void* address, size_t bytes, unsigned flags) {
  return gets_fault("mlock2", ENOMEM, Signals::kIgnored) ? -1 : __real_mlock2(address, bytes, flags);
}
int __wrap_fallocate(int descriptor, int mode, off_t at, off_t bytes) {
  return gets_fault("fallocate", EOPNOTSUPP, Signals::kIgnored) ? -1 : __real_fallocate(descriptor, mode, at, bytes);
}
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
  return gets_fault("syscall", ENOSYS, Signals::kIgnored) ? -1 : __real_syscall(number, a, b, c, d, e, f);
}
FILE* __wrap_fopen(const char* path, const char* mode) {
  return gets_fault("fopen", EMFILE, Signals::kIgnored) ? nullptr : __real_fopen(path, mode);
}
size_t __wrap_fwrite(const void* from, size_t size, size_t count, FILE* file) {
  return gets_fault("fwrite", ENOSPC, Signals::kIgnored) ? 0 : __real_fwrite(from, size, count, file);
}
int __wrap_fflush(FILE* file) {
  return gets_fault("fflush", ENOSPC, Signals::kIgnored) ? EOF : __real_fflush(file);
}
int __wrap_mkostemp(char* pattern, int flags) {
  return gets_fault("mkostemp", EACCES, Signals::kIgnored) ? -1 : __real_mkostemp(pattern, flags);
}
char* __wrap_mkdtemp(char* pattern) {
  return gets_fault("mkdtemp", EACCES, Signals::kIgnored) ? nullptr : __real_mkdtemp(pattern);
}
int __wrap_flock(int descriptor, int operation) {
  return gets_fault("flock", ENOLCK, Signals::kIgnored) ? -1 : __real_flock(descriptor, operation);
}
int __wrap_pipe(int* ends) {
  return gets_fault("pipe", EMFILE, Signals::kIgnored) ? -1 : __real_pipe(ends);
}
pid_t __wrap_fork() {
  return gets_fault("fork", EAGAIN, Signals::kIgnored) ? -1 : __real_fork();
}
void* __wrap_dlopen(const char* path, int flags) {
  // An absent file instead, so that dlerror() has something to say.
  return __real_dlopen(gets_fault("dlopen", 0, Signals::kIgnored) ? "/nonexistent/library.so" : path, flags);
}
void* __wrap_dlsym(void* library, const char* name) {
  return __real_dlsym(library, gets_fault("dlsym", 0, Signals::kIgnored) ? "berth_has_no_such_symbol" : name);
}
int __wrap_posix_memalign(void** into, size_t alignment, size_t bytes) {
  return gets_fault("posix_memalign", ENOMEM, Signals::kIgnored) ? ENOMEM
                                                                 : __real_posix_memalign(into, alignment, bytes);
}

}  // extern "C"
// NOLINTEND

namespace berth::test {

namespace {

// What a crash of the machine does to files whose bytes were not flushed.
void lose_unflushed_writes() {
  for (const State::Created& file : state().created) {
    if (__real_ftruncate(file.descriptor, file.flushed) != 0) _exit(98);
  }
}

}  // namespace

bool gets_fault(const char* call, int reason, Signals signals) {
  State& s = state();
  if (!s.armed.load(std::memory_order_relaxed)) return false;
  const std::size_t number = s.seen.fetch_add(1) + 1;
  const SystemFault fault = s.fault.load();
  if (number < s.number.load() || (number > s.number.load() && fault != SystemFault::kForbid)) return false;
  if (fault == SystemFault::kNone || (fault == SystemFault::kInterrupt && signals == Signals::kIgnored)) return false;
  if (fault == SystemFault::kDie) {
    lose_unflushed_writes();
    _exit(kDied);
  }
  {
    const std::lock_guard lock(s.mutex);
    s.faulted = call;
  }
  errno = fault == SystemFault::kInterrupt ? EINTR : reason;
  return true;
}

void note_created(int descriptor) {
  State& s = state();
  if (s.armed.load() && s.fault.load() == SystemFault::kDie) s.created.push_back({dup(descriptor), 0});
}

void note_flushed(int descriptor) {
  struct stat flushed {
  }, known{};
  if (__real_fstat(descriptor, &flushed) != 0) return;
  for (State::Created& file : state().created)
    if (__real_fstat(file.descriptor, &known) == 0 && known.st_ino == flushed.st_ino) file.flushed = flushed.st_size;
}

std::size_t at_most(std::size_t bytes) {
  const std::size_t largest = state().largest.load(std::memory_order_relaxed);
  return largest == 0 ? bytes : std::min(bytes, largest);
}

void call_before_open(const char* path, int flags) {
  if (state().before_open) state().before_open(path, flags);
}

void arm(SystemFault fault, std::size_t number) {
  State& s = state();
  s.faulted.clear();
  s.fault = fault;
  s.number = number;
  s.seen = 0;
  s.armed = true;
}

std::size_t disarm() {
  state().armed = false;
  return state().seen;
}

std::string faulted_call() {
  const std::lock_guard lock(state().mutex);
  return state().faulted;
}

void limit_transfers(std::size_t bytes) {
  state().largest = bytes;
}

void before_open(std::function<void(const std::string&, int)> hook) {
  state().before_open = std::move(hook);
}

}  // namespace berth::test
