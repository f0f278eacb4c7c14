// SPDX-License-Identifier: MIT
// How many slots to have next, from how memory is now. Pure.
//
// Slots go quickly when memory is short and come back slowly when it is not: a step is a sixteenth of what there is.
// Between shortage and plenty lies a band in which nothing changes, so that the size does not swing.
#pragma once

#include "types.h"

#include <cstdint>

struct emc_size_view {
    int      slots           = 0;   // in each layer, now
    int      least           = 0;   // one token cycle: below it a cache can only cost
    int      most            = 0;   // what was asked for, or what there are experts for
    uint64_t round_bytes     = 0;   // one slot in every layer
    uint64_t untouched_bytes = 0;   // of the slots, not yet backed by memory: room that is as good as taken
    uint64_t room_bytes      = 0;   // what this process may still take
    uint64_t reserve_bytes   = 0;   // what has to stay of it
    double   pressure        = -1;  // as emc_pressure gives it
};

constexpr double EMC_PRESSURE_HIGH = 0.10;
constexpr double EMC_PRESSURE_LOW  = 0.01;

// The share of about the last ten seconds in which something waited for memory. Counted from the first update on: the
// kernel's own average remembers what a process before this one did in the same group.
class emc_pressure {
public:
    static constexpr double MEMORY = 10;  // seconds

    // waited: seconds in all, by the kernel's count, below 0 if it has none; now: seconds of any clock that does not go
    // back. Below 0: unknown.
    double update(double waited, double now);

private:
    double last_waited = -1;
    double last_now    = 0;
    double share       = 0;
};

// The slots that this cache may have of what all of them could: an equal part each. own_bytes: of its slots; kept_bytes: what
// is no slot's of these and of the room. More may be kept than there is room: then all have to give.
int emc_fair_slots(const emc_peers_seen & seen, uint64_t own_bytes, uint64_t room_bytes, uint64_t kept_bytes, uint64_t round_bytes);

// REQUIRES: 1 <= least <= most, round_bytes > 0. The result is within least and most.
int emc_size_next(const emc_size_view & view);
