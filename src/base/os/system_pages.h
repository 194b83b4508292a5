// Pages and files, where Linux and macOS differ. linux/ and macos/ define these functions; only the sources of
// src/base/os know which system they run on. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth::internal {

// The bytes of one page.
std::size_t page_bytes() noexcept;

// Requests huge pages. This is advice; it does nothing on systems that choose huge pages themselves.
void want_huge_pages(void* address, std::size_t bytes) noexcept;

// Faults pages in with one call, for reading or also for writing. False if the system has no such call; the caller must
// then touch the pages. Requires: whole pages.
bool populate_pages(void* address, std::size_t bytes, bool for_writing = true) noexcept;

// Locks resident pages in memory until munlock. False with errno, for example above the lock limit. Requires: whole
// pages.
bool lock_pages(void* address, std::size_t bytes) noexcept;

// Removes access and memory from a range and keeps the addresses. With access restored, the range reads as zeroes.
// False with errno; the memory is then as it was. Requires: whole pages of an anonymous mapping that can be read and
// written.
bool discard_pages(void* address, std::size_t bytes) noexcept;

// Gives the memory of pages back and keeps them usable: they hold nothing in particular until they are written. False
// if the system refuses, for example for locked pages; they then stay as they are. Requires: whole pages of an
// anonymous private mapping.
bool give_back_pages(void* address, std::size_t bytes) noexcept;

// Gives free memory of the heap back to the system, where the heap can do that. Takes milliseconds.
void trim_heap() noexcept;

// An unnamed file in `folder` that is deleted with its descriptor, or -1 if the system has none.
int open_unnamed(const char* folder) noexcept;

// A descriptor whose reads bypass the page cache, or -1 if the file system does not support it. The caller closes it.
int open_past_cache(const char* path) noexcept;

// Gives the bytes of a file back to the file system, where it can take them; they then read as zero. Elsewhere nothing
// happens.
void punch_hole(int descriptor, std::uint64_t offset, std::uint64_t bytes) noexcept;

}  // namespace berth::internal
