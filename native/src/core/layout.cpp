// SPDX-License-Identifier: MIT
#include "layout.h"

#include "budget.h"
#include "saturating.h"

#include <cstring>

uint64_t emc_layer_slot_bytes(const emc_layer & layer) {
    uint64_t bytes = 0;
    for (const emc_extent & kind : layer.kinds) {
        bytes = emc_sum(bytes, emc_piece_bytes(kind.stride));
    }
    return bytes;
}

std::string emc_extent_fault(const emc_extent & extent, int64_t n_experts, uint64_t file_bytes) {
    if (n_experts < 1 || n_experts > EMC_EXPERTS_MAX) {
        return std::to_string(n_experts) + " experts, where the cache serves 1 to " + std::to_string(EMC_EXPERTS_MAX);
    }
    if (extent.stride == 0) {
        return "experts of 0 bytes";
    }
    if (emc_sum(extent.offset, emc_product(extent.stride, (uint64_t) n_experts)) > file_bytes) {
        return std::to_string(n_experts) + " experts of " + std::to_string(extent.stride) + " bytes from byte " +
            std::to_string(extent.offset) + " on do not end within the file's " + std::to_string(file_bytes);
    }
    return "";
}

int emc_tensor_layer(const char * name, const char ** rest) {
    static const char   prefix[]   = "blk.";
    static const size_t DIGITS_MAX = 9;  // any number of so many fits
    if (strncmp(name, prefix, strlen(prefix)) != 0) {
        return -1;
    }
    const char * digits = name + strlen(prefix);
    const size_t n      = strspn(digits, "0123456789");
    if (n == 0 || n > DIGITS_MAX || digits[n] != '.') {
        return -1;
    }
    int layer = 0;
    for (size_t i = 0; i < n; ++i) {
        layer = layer * 10 + (digits[i] - '0');
    }
    *rest = digits + n + 1;
    return layer;
}
