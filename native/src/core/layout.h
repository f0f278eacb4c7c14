// SPDX-License-Identifier: MIT
// Where a model's experts are in its files, and whether that can be believed: whoever wrote a file chose these numbers.
#pragma once

#include "types.h"

#include <string>
#include <vector>

// Where one kind of a layer is: expert e is at offset + e*stride, stride bytes long.
struct emc_extent {
    int      file   = 0;
    uint64_t offset = 0;
    uint64_t stride = 0;
};

struct emc_layer {
    int                     n_experts = 0;
    std::vector<emc_extent> kinds;  // in order of execution, at most EMC_MAX_KINDS
};

// Bytes of one slot of this layer.
uint64_t emc_layer_slot_bytes(const emc_layer & layer);

// A hundred times what any model has. Bookkeeping is made for each expert before the first is read.
constexpr int64_t EMC_EXPERTS_MAX = 1 << 16;

// Why so many experts cannot be served from there, with what was seen; empty if they can.
std::string emc_extent_fault(const emc_extent & extent, int64_t n_experts, uint64_t file_bytes);

// The layer of a tensor that belongs to one ("blk.12.ffn_norm.weight"), and in *rest what follows its number's dot.
// -1 for any other name; so the number is digits alone and fits.
int emc_tensor_layer(const char * name, const char ** rest);
