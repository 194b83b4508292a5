// What metal-cpp names of <mach/mach.h>, for systems without Apple's headers.
#pragma once

typedef int kern_return_t;
typedef unsigned task_id_token_t;
