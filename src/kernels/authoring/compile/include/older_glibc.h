// What a compiler of today would otherwise ask of a newer glibc than that of manylinux_2_28.
#pragma once

#ifdef __cplusplus
#include <cstddef>  // also defines __GLIBC__

#if defined(__linux__) && defined(__GLIBC__)
// libstdc++ of GCC 11 and later asks glibc 2.32 whether there is only one thread. The library's own answer, no, is always
// safe: it only means that reference counts are changed atomically.
extern "C" __attribute__((weak, visibility("hidden"))) char __libc_single_threaded = 0;
#endif
#endif
