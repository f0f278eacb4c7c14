// SPDX-License-Identifier: MIT
// Words that every layer of the cache uses.
#pragma once

#include <cstddef>
#include <cstdint>

// A slot holds one expert of one layer: all its pieces. Ids count from 0 inside their layer.
using emc_slot = int32_t;
constexpr emc_slot EMC_NO_SLOT = -1;

// Logical time: the number of layer events so far. Policies see this and never a clock.
using emc_tick = uint64_t;

// A layer multiplies by at most three expert tensors: gate, up, down (or gate_up, down).
// A kind is an index into the layer's own list, which is in order of execution.
constexpr int EMC_MAX_KINDS = 3;

// Offset, length and address of a direct read are multiples of this. 4096 satisfies every drive and
// file system that accepts O_DIRECT at all.
constexpr uint64_t EMC_ALIGN = 4096;

// Batches of at most this many tokens are decode (parallel slots decode together); larger are prefill.
constexpr int EMC_DECODE_ROWS = 4;

enum emc_phase { EMC_DECODE = 0, EMC_PREFILL = 1 };

inline emc_phase emc_phase_of(int64_t rows) { return rows <= EMC_DECODE_ROWS ? EMC_DECODE : EMC_PREFILL; }

// Other servers that size themselves in the same memory, and what they have together, in bytes.
struct emc_peers_seen {
    int      others    = 0;  // of them that share: one whose model fits takes no part
    uint64_t bytes     = 0;  // of their slots
    uint64_t untouched = 0;  // of these, not yet backed by memory: room that is as good as taken
    uint64_t mapped    = 0;  // file pages that must stay: room that is not for slots
};
