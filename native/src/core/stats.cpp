// SPDX-License-Identifier: MIT
#include "stats.h"

bool emc_stats_consistent(const emc_stats & s, uint64_t resident, uint64_t slots) {
    for (int p = 0; p < 2; ++p) {
        if (s.hits[p] + s.misses[p] != s.lookups[p]) {
            return false;
        }
    }
    const uint64_t misses = s.misses[0] + s.misses[1];
    // an eviction makes room for a miss, and what came in and was not evicted or dropped for an error is resident
    return resident <= slots && s.evictions <= misses && resident + s.evictions <= misses &&
        resident + s.evictions + s.errors >= misses && s.pieces_landed <= s.pieces_queued;
}
