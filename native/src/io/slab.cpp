// SPDX-License-Identifier: MIT
#include "slab.h"

#include <cerrno>
#include <sys/mman.h>

// A huge page of x86-64, and of arm64 with pages of 4 KiB. Where it is larger, the first and last stay small pages.
static constexpr uint64_t HUGE_PAGE = 2ull << 20;

void * emc_slab_map(uint64_t bytes) {
    if (bytes > UINT64_MAX - 2 * HUGE_PAGE) {  // with the rounding below
        errno = ENOMEM;
        return nullptr;
    }
    bytes = (bytes + 4095) / 4096 * 4096;
    void * mapped = mmap(nullptr, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return nullptr;
    }
    // kernels before 6.7 do not align by themselves
    const uint64_t before = (HUGE_PAGE - (uintptr_t) mapped % HUGE_PAGE) % HUGE_PAGE;
    char *         slab   = (char *) mapped + before;
    if (before > 0) {
        munmap(mapped, before);
    }
    munmap(slab + bytes, HUGE_PAGE - before);
    madvise(slab, bytes, MADV_HUGEPAGE);  // a wish: a kernel without huge pages refuses, and nothing else changes
    return slab;
}
