// SPDX-License-Identifier: MIT
// How many slots a number of bytes buys. Pure arithmetic over numbers handed in.
//
// A round is one slot in every cached layer; slots are handed out in whole rounds, so every layer has as many as
// the next. A token cycle is what one token touches: n_used rounds. Below one cycle an expert is always evicted
// before it is used again, so a cache can only cost; then there is none.
//
// Staging, the buffers that prefill streams through, comes out of the same bytes: what whole rounds leave over, or one
// round or more less where that is not enough, but never so much that less than a cycle remains.
#pragma once

#include "saturating.h"
#include "types.h"

#include <string>

struct emc_budget_request {
    uint64_t asked_bytes   = 0;
    uint64_t round_bytes   = 0;  // sum over the cached layers of one slot
    int      n_used        = 0;  // experts that a token uses in a layer
    int      n_experts     = 0;  // of the layer that has most; more slots than this are useless
    uint64_t piece_bytes   = 0;  // the largest piece of any layer, as emc_piece_bytes gives it
    bool     automatic     = false;
};

struct emc_budget {
    int         slots           = 0;   // in each layer; 0 = no cache
    int         staging         = 0;   // buffers of piece_bytes; 0 = batches beyond the slots use the mapping
    uint64_t    delivered_bytes = 0;   // slots and staging
    uint64_t    cycle_bytes     = 0;
    double      cycles          = 0;
    std::string reason;                // why there is none
};

// Enough that every reader thread has a read under way while as many pieces wait to be computed; more only takes
// slots away. With fewer than the least a stream would be slower than the mapping.
constexpr int EMC_STAGING       = 16;
constexpr int EMC_STAGING_LEAST = 4;

emc_budget emc_budget_fit(const emc_budget_request & request);

// The bytes that `auto` asks for: what memory leaves after the weights that must stay resident and the reserve,
// rounded down to whole token cycles beside the staging, and no more than all experts take (all_bytes).
//
// The reserve is for what does not exist yet when a model loads (KV cache, compute buffers, growth of others):
// an eighth of the room, and never less than EMC_RESERVE_MIN. A plan that knows context and KV size does better.
constexpr uint64_t EMC_RESERVE_MIN = 256ull << 20;

uint64_t emc_budget_auto(uint64_t room_bytes, uint64_t dense_bytes, uint64_t cycle_bytes, uint64_t all_bytes,
    uint64_t staging_bytes);

// Whether the mapping serves as well as a cache: the page cache can hold nearly all experts beside the dense weights.
// room_bytes: once context and buffers exist, so nothing is kept back. At 0.95 both serve alike (docs/expert-cache-design.md).
bool emc_budget_fits(uint64_t room_bytes, uint64_t dense_bytes, uint64_t expert_bytes);
constexpr double EMC_FITS_SHARE = 0.96;

// A slot's bytes for one piece: the aligned window of a piece that starts anywhere in a page. Rounding up before
// adding is what keeps the last page of a read inside the slot when a piece is no multiple of a page.
inline uint64_t emc_piece_bytes(uint64_t piece) {
    return emc_sum(emc_sum(piece, EMC_ALIGN - 1) / EMC_ALIGN * EMC_ALIGN, EMC_ALIGN);
}
