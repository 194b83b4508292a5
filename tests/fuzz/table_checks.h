// What must hold for every table that a parser gives out, whatever the bytes were.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "base/utf8.h"
#include "weights/tensor_table.h"

namespace berth::internal::formats {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

inline void check_table(const TensorTable& table, std::uint64_t file_bytes) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < table.tensors().size(); ++i) {
    const TensorInfo& tensor = table.tensors()[i];
    require(tensor.offset <= file_bytes && tensor.bytes <= file_bytes - tensor.offset, "a tensor outside the file");
    require(tensor.bytes == 0 || tensor.offset >= end, "tensors overlap or are not in file order");
    require(table.find(tensor.name) == i, "a tensor is not found by its name");
    require(first_invalid_utf8(tensor.name) == tensor.name.size(), "a name is not UTF-8");
    const auto bytes = checked_bytes(tensor.dtype, tensor.shape);
    require(bytes && *bytes == tensor.bytes, "bytes differ from dtype and shape");
    if (tensor.bytes != 0) end = tensor.offset + tensor.bytes;
  }
  for (const MetadataEntry& entry : table.metadata()) {
    require(table.find_metadata(entry.key) == &entry.value, "a value is not found by its key");
    static_cast<void>(entry.value.to_string());
    if (entry.value.type() == MetadataType::kArray && entry.value.size() > 0) {
      require(entry.value.at(entry.value.size() - 1).has_value(), "an array's last element is missing");
      require(!entry.value.at(entry.value.size()).has_value(), "an array has an element past its end");
    }
  }
}

}  // namespace berth::internal::formats
