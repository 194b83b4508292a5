// What metal-cpp names of <IOSurface/IOSurfaceRef.h>, for systems without Apple's headers.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
