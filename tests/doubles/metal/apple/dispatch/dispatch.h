// Declarations of <dispatch/dispatch.h> for systems without Apple's headers: queues as names for a listener, and data.
#pragma once

#include <cstddef>

typedef struct dispatch_object* dispatch_object_t;
typedef struct dispatch_object* dispatch_queue_t;
typedef struct dispatch_object* dispatch_data_t;

extern "C" {
dispatch_queue_t dispatch_queue_create(const char* label, void* attribute);
void dispatch_retain(dispatch_object_t object);
void dispatch_release(dispatch_object_t object);
#if defined(__BLOCKS__)
typedef void (^dispatch_block_t)(void);
#else
typedef void* dispatch_block_t;
#endif
// With a null destructor the bytes are copied, as with DISPATCH_DATA_DESTRUCTOR_DEFAULT; otherwise it is run when the
// data goes.
dispatch_data_t dispatch_data_create(const void* bytes, size_t size, dispatch_queue_t queue,
                                     dispatch_block_t destructor);
}

#define DISPATCH_DATA_DESTRUCTOR_DEFAULT nullptr
