// SPDX-License-Identifier: MIT
// The order in which the threads of a call compute its experts: whatever has arrived first.
//
// All threads walk the same order, so a position, once decided, stays. What is resident when the call begins takes the
// first positions; each later one is decided when a thread comes to it, and then everything that has arrived by that
// moment is put into the order at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Move those of pending that are ready to the end of order; both keep their sequence. Returns how many there were.
//
// is_ready(i) may look at state that reader threads change meanwhile: it is asked once for each i and the answer decides
// where i goes, so an expert whose last read ends during the question is in exactly one of the two. To ask again for
// the second group is how an expert gets lost, and its output keeps the values of an earlier token.
// REQUIRES: order has capacity for all (nothing is allocated then).
template <typename is_ready_fn>
size_t emc_order_take_ready(std::vector<int32_t> & pending, std::vector<int32_t> & order, is_ready_fn is_ready) {
    size_t kept = 0;
    for (const int32_t i : pending) {
        if (is_ready(i)) {
            order.push_back(i);
        } else {
            pending[kept++] = i;
        }
    }
    const size_t taken = pending.size() - kept;
    pending.resize(kept);
    return taken;
}
