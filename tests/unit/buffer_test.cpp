#include "berth/buffer.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

DevicePtr cpu() {
  return device("CPU").value();
}

TEST(Buffer, GivesEachHandleAnIdAndSharesTheStorageIdWithItsViews) {
  const Buffer buffer = Buffer::allocate(cpu(), f32, {4, 4}).value();
  const Buffer copy = buffer;
  const Buffer view = buffer.view(16, 16).value();
  EXPECT_EQ(copy.id(), buffer.id());
  EXPECT_NE(view.id(), buffer.id());
  EXPECT_EQ(view.storage_id(), buffer.storage_id());
  EXPECT_EQ(view.size(), 16u);
  EXPECT_EQ(view.total_size(), 64u);
}

}  // namespace
}  // namespace berth
