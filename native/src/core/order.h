// SPDX-License-Identifier: MIT
// The order in which a call computes its experts: resident ones first, so that reads hide behind them.
#pragma once

#include <cstddef>
#include <cstdint>

// Write 0..n-1 to order, those that are ready first, each group in its given order.
//
// is_ready(i) looks at live state that reader threads change meanwhile, so it is asked once for each i, and the answer
// is kept in snapshot. Asking again while filling the second group loses an expert whose last read ends between the two
// questions: it is in neither group, nothing computes it, and its output keeps the values of an earlier token.
template <typename is_ready_fn>
void emc_order_ready_first(size_t n, is_ready_fn is_ready, uint8_t * snapshot, int32_t * order) {
    size_t n_ready = 0;
    for (size_t i = 0; i < n; ++i) {
        snapshot[i] = is_ready(i) ? 1 : 0;
        n_ready += snapshot[i];
    }
    size_t now   = 0;
    size_t later = n_ready;
    for (size_t i = 0; i < n; ++i) {
        order[snapshot[i] ? now++ : later++] = (int32_t) i;
    }
}
