// SPDX-License-Identifier: MIT
#include "stats.h"

bool emc_stats_consistent(const emc_stats & s, uint64_t resident, uint64_t slots) {
    for (int p = 0; p < 2; ++p) {
        if (s.hits[p] + s.misses[p] != s.lookups[p] || s.streamed[p] > s.misses[p]) {
            return false;
        }
    }
    const uint64_t loads = s.misses[0] + s.misses[1] - s.streamed[0] - s.streamed[1] + s.guessed;
    // an eviction makes room for a load, and what came in and was not evicted or dropped for an error is resident
    return resident <= slots && resident + s.evictions <= loads && resident + s.evictions + s.errors >= loads &&
        s.pieces_landed <= s.pieces_queued && s.ahead_used + s.ahead_dropped <= s.ahead_queued && s.guessed_used + s.guessed_lost <= s.guessed;
}
