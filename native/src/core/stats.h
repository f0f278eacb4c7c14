// SPDX-License-Identifier: MIT
// Counters of one cache. They only grow; a reader takes differences.
#pragma once

#include "types.h"

struct emc_stats {
    // One lookup = one expert of one layer for one batch, however many products it takes part in.
    // hits[p] + misses[p] == lookups[p]. Indexed by emc_phase.
    uint64_t lookups[2] = {0, 0};
    uint64_t hits[2]    = {0, 0};
    uint64_t misses[2]  = {0, 0};
    uint64_t streamed[2] = {0, 0};  // those misses that took no slot: their pieces passed through staging
    uint64_t bypass[2]  = {0, 0};  // products that used the mapping although the cache is on

    uint64_t decode_tokens = 0;
    uint64_t evictions     = 0;
    uint64_t errors        = 0;    // pieces that could not be read; computed from the mapping
    uint64_t pieces_queued = 0;
    uint64_t pieces_landed = 0;    // read or failed; == pieces_queued once the reader is idle
    uint64_t ahead_queued  = 0;    // pieces read into staging before their product began
    uint64_t ahead_used    = 0;
    uint64_t ahead_dropped = 0;    // nothing asked for them in time
    uint64_t guessed       = 0;    // experts read into a slot before decode asked for them
    uint64_t guessed_used  = 0;    // of these, asked for while they were there: each is a hit
    uint64_t guessed_lost  = 0;    // of these, gone before anything asked for them
    uint64_t stall_ns      = 0;    // time in which at least one compute thread waited for a piece

    uint64_t read_bytes    = 0;    // as read, with the alignment around pieces
    uint64_t read_ns       = 0;    // that reads were under way, summed over reads
};

// true if the relations between counters hold; resident = slots that hold an expert.
bool emc_stats_consistent(const emc_stats & s, uint64_t resident, uint64_t slots);
