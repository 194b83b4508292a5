// What metal-cpp asks about its target, for systems without Apple's headers: a macOS with MTLCopyAllDevices and no
// observers of devices.
#pragma once

#define TARGET_OS_OSX 0
#define TARGET_OS_IPHONE 0
#ifndef __MAC_OS_X_VERSION_MIN_REQUIRED
#define __MAC_OS_X_VERSION_MIN_REQUIRED 140000
#endif
