#include "berth/tensor/shape.h"

#include <limits>

namespace berth {

Result<Shape> Shape::make(std::span<const std::size_t> extents) {
  if (extents.size() > kMaxRank)
    return Error(Code::kInvalidArgument, Layer::kBuffer, "a shape of rank {} exceeds the limit of {}", extents.size(),
                 kMaxRank);
  return Shape(extents);
}

Result<std::size_t> Shape::element_count() const {
  if (too_long_)
    return Error(Code::kInvalidArgument, Layer::kBuffer, "a shape of more than {} extents: merge some of them",
                 kMaxRank);
  std::size_t count = 1;
  // One extent of zero makes the whole shape empty, however large the others are.
  for (std::size_t extent : extents())
    if (extent == 0) return std::size_t{0};
  for (std::size_t extent : extents()) {
    if (count > std::numeric_limits<std::size_t>::max() / extent)
      return Error(Code::kInvalidArgument, Layer::kBuffer, "the product of the shape's extents overflows at {} x {}",
                   count, extent);
    count *= extent;
  }
  return count;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(extents_[axis]);
  }
  return text + (too_long_ ? ", ...]" : "]");
}

}  // namespace berth
