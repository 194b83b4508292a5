// Pages and files, where Linux and macOS differ. linux/ and macos/ define these functions; only the sources of
// src/base/os know which system they run on. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth {

// The bytes of one page.
std::size_t page_bytes() noexcept;

// Asks for huge pages: advice, and nothing where the system chooses them itself.
void want_huge_pages(void* address, std::size_t bytes) noexcept;

// Faults pages in with one call, for writing too or only for reading. False where the system has no such call: then
// touch them. Requires: whole pages.
bool populate_pages(void* address, std::size_t bytes, bool for_writing = true) noexcept;

// Keeps pages that are in memory from being paged out, until munlock. False with errno, past the lock limit for one.
// Requires: whole pages.
bool lock_pages(void* address, std::size_t bytes) noexcept;

// Takes access and memory from a range and keeps the addresses; with access again it holds zeroes. False with errno.
// Requires: whole pages of an anonymous mapping.
bool discard_pages(void* address, std::size_t bytes) noexcept;

// A file in `folder` that has no name and goes with its descriptor, or -1 where the system has none.
int open_unnamed(const char* folder) noexcept;

// A descriptor whose reads go past the page cache, or -1 where the file system has none. The caller closes it.
int open_past_cache(const char* path) noexcept;

// Gives the bytes of a file back to the file system, where it can take them; they then read as zero. Elsewhere nothing
// happens.
void punch_hole(int descriptor, std::uint64_t offset, std::uint64_t bytes) noexcept;

}  // namespace berth
