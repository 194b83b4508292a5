// Devices by name. device("CUDA:1") opens the device, or returns the one that is already open. A program can add a
// backend of its own with register_backend(); its devices then work everywhere a name is accepted, including the
// command line and Python. Any thread may call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "berth/memory/device.h"

namespace berth {

// One kind of device.
struct Backend {
  std::string kind{};  // upper case: "CPU". Names are matched without regard to case
  // What may follow the colon: an ordinal ("CUDA:1", where "CUDA" means "CUDA:0"), or a path ("DISK:/models/a.gguf").
  enum class Argument : std::uint8_t { kOrdinal, kPath } argument = Argument::kOrdinal;
  // Opens the device for a decimal ordinal or a path. kDeviceUnavailable with what would make it available.
  std::function<Result<DevicePtr>(const std::string& argument)> open{};
  // Whether an open device is still what its name stands for. A file may have been replaced since: the name then opens
  // a new device, and the old one lives on for those who hold it. Empty means that this never happens.
  std::function<bool(const Device& device)> is_current{};
  // The DLPack device types whose tensors this backend can import. See Device::dlpack_place.
  std::vector<std::int32_t> dlpack_types{};
  // One line for the list of devices, for backends that cannot open a device without an argument.
  std::string about{};
};

// Adds a backend for the rest of the process. kAlreadyExists if the kind is taken; kInvalidArgument for a kind that is
// empty, contains a colon or lower-case letters, or has no open function.
Result<void> register_backend(Backend backend);

// The device with this name: "CPU", "cpu:0", "DISK:/path/to/file", "CUDA:1", "METAL", "WEBGPU", or one of a registered
// backend. Paths are case-sensitive. While a device is open, the same name returns the same device. kInvalidArgument
// for a name that no backend has; kDeviceUnavailable with what would make it available.
Result<DevicePtr> device(std::string_view name);

// The device that imports DLPack tensors with this location. kDeviceUnavailable if no backend does.
Result<DevicePtr> device_for_dlpack(std::int32_t device_type, std::int32_t device_id);

// One row of `berth devices`.
struct DeviceStatus {
  std::string name{};
  bool available = false;
  std::string description{};  // what it is, or why it is not available and what to do
  DeviceLimits limits{};
};

// Every registered kind of device, available or not. Opens the drivers that are present.
std::vector<DeviceStatus> list_devices();

}  // namespace berth
