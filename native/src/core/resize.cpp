// SPDX-License-Identifier: MIT
#include "resize.h"

#include "check.h"
#include "saturating.h"

#include <algorithm>
#include <climits>
#include <cmath>

double emc_pressure::update(double waited, double now) {
    if (waited < 0) {
        last_waited = -1;
        return -1;
    }
    if (last_waited >= 0 && waited >= last_waited && now > last_now) {
        const double seconds = now - last_now;
        share += (std::min(1.0, (waited - last_waited) / seconds) - share) * (1 - std::exp(-seconds / MEMORY));
    }
    last_waited = waited;
    last_now    = now;
    return share;
}

int emc_fair_slots(const emc_peers_seen & seen, uint64_t own_bytes, uint64_t room_bytes, uint64_t kept_bytes, uint64_t round_bytes) {
    EMC_CHECK(seen.others >= 0 && round_bytes > 0);
    const uint64_t all = emc_sum(emc_sum(own_bytes, seen.bytes), room_bytes);
    const uint64_t for_slots = all - std::min(all, kept_bytes);
    return (int) std::min<uint64_t>(for_slots / ((uint64_t) seen.others + 1) / round_bytes, INT_MAX);
}

int emc_size_next(const emc_size_view & v) {
    EMC_CHECK(v.least >= 1 && v.least <= v.most && v.round_bytes > 0);
    const uint64_t room = v.room_bytes > v.untouched_bytes ? v.room_bytes - v.untouched_bytes : 0;
    const int      step = std::max(1, v.slots / 16);

    int next = v.slots;
    if (v.pressure >= EMC_PRESSURE_HIGH || room < v.reserve_bytes / 2) {
        next -= step;
    } else if (v.pressure <= EMC_PRESSURE_LOW && room > v.reserve_bytes) {
        next += (int) std::min<uint64_t>((uint64_t) step, (room - v.reserve_bytes) / v.round_bytes);
    }
    return std::clamp(next, v.least, v.most);
}
