// What other ranks publish and send: any bytes give a value or an error. The seal is made here, so that what is behind
// it is reached, too; the first byte chooses the parser.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "berth/remote/window.h"
#include "remote/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace berth::internal::remote;
  if (size == 0) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  static const Sealer sealer("token");
  const Seal seal = sealer.seal(bytes);
  Bytes sealed(seal.begin(), seal.end());
  sealed.insert(sealed.end(), bytes.begin(), bytes.end());
  switch (data[0] % 4) {
    case 0:
      if (const auto card = decode_card(sealed, 3, sealer); card && encode(*card, sealer) != sealed) std::abort();
      break;
    case 1:
      if (const auto message = decode_message(sealed, sealer); message && encode(*message, sealer) != sealed)
        std::abort();
      break;
    case 2:
      // A dtype is found in any spelling, and written in one.
      if (const auto window = berth::RemoteWindow::from_bytes(bytes);
          window && berth::RemoteWindow::from_bytes(window->to_bytes()).value() != *window)
        std::abort();
      break;
    default:  // without the right seal
      if (decode_message(bytes, sealer) && bytes.size() < kSealBytes) std::abort();
  }
  return 0;
}
