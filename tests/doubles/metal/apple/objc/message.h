// Declarations that metal-cpp needs of <objc/message.h>, for systems without Apple's headers.
#pragma once

#include <objc/runtime.h>

extern "C" {
void objc_msgSend(void);
void objc_msgSend_stret(void);
void objc_msgSend_fpret(void);
}
