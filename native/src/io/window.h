// SPDX-License-Identifier: MIT
// Aligned-window arithmetic: which whole pages contain a piece of a file, and how to cut them into reads.
#pragma once

#include "../core/types.h"

struct emc_window {
    uint64_t begin;   // first byte to read, aligned
    uint64_t end;     // one past the last, aligned; may lie past the end of the file
    uint64_t lead;    // bytes of the window before the piece: the piece is at buffer + lead
};

// REQUIRES: length > 0.
inline emc_window emc_window_of(uint64_t offset, uint64_t length) {
    const uint64_t begin = offset / EMC_ALIGN * EMC_ALIGN;
    const uint64_t end   = (offset + length + EMC_ALIGN - 1) / EMC_ALIGN * EMC_ALIGN;
    return { begin, end, offset - begin };
}

struct emc_cut {
    uint64_t offset;  // in the file, aligned
    uint64_t length;  // aligned, at most the largest read
    uint64_t needed;  // bytes of it that must arrive; the rest is padding, or beyond the end of the file
};

inline uint64_t emc_window_cuts(const emc_window & w, uint64_t largest) {
    return (w.end - w.begin + largest - 1) / largest;
}

// The i-th read of the window of a piece of this length. REQUIRES: i < emc_window_cuts, largest is aligned.
inline emc_cut emc_window_cut(const emc_window & w, uint64_t length, uint64_t largest, uint64_t i) {
    const uint64_t offset = w.begin + i * largest;
    const uint64_t end    = offset + largest < w.end ? offset + largest : w.end;
    const uint64_t last   = w.begin + w.lead + length;
    return { offset, end - offset, (end < last ? end : last) - offset };
}
