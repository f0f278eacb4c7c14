// SPDX-License-Identifier: MIT
// Sums and products of sizes that come from a file. What is too large stays the largest number, so that it is refused
// like any other size that is too large, and never starts again at 0.
#pragma once

#include <cstdint>

inline uint64_t emc_sum(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

inline uint64_t emc_product(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
