// SPDX-License-Identifier: MIT
// The part of the cache that lets a batch of more experts than there are slots pass through staging.
#include "../core/hand-over.h"
#include "cache.h"

#include <algorithm>

// A batch that uses at least this share of a layer's experts is taken to use them all in the next layer. Below it the
// drive would read too much for nothing.
static constexpr double AHEAD_SHARE = 0.75;

// The missing experts of a stream that may have a slot if there is one for them: those of its last rows, latest first,
// since decode goes on from there, and then, as long as slots are EMPTY, any.
void emc_cache::choose_worthy(emc_call & call, const emc_tail & tail) {
    call.worthy.clear();
    for (int i = 0; i < call.n; ++i) {
        const bool streams = call.slots[i] == EMC_NO_SLOT && call.buffers[i] == EMC_NO_BUFFER;
        call.index_of[call.experts[i]] = streams ? i : -1;
    }
    const auto take = [&](int32_t expert) {
        int32_t & i = call.index_of[expert];
        if (i >= 0) {
            call.worthy.push_back(i);
            i = -1;
        }
    };
    for (int row = tail.n_rows - 1; row >= 0; --row) {
        std::for_each_n(tail.experts + (size_t) row * tail.width, tail.width, take);
    }
    const int n_empty = layers[call.layer].table->empty();
    for (int i = 0; i < call.n && (int) call.worthy.size() < n_empty; ++i) {
        take(call.experts[i]);
    }
}

// What a stream will ask for after this product.
void emc_cache::expect(const emc_call & call) {
    expected.clear();
    next_expected = 0;
    for (int k = call.kind + 1; k < (int) layers[call.layer].layout.kinds.size(); ++k) {
        for (int i = 0; i < call.n; ++i) {
            if (call.slots[i] == EMC_NO_SLOT) {
                expected.push_back({ call.layer, k, call.experts[i] });
            }
        }
    }
    const bool nearly_all = call.n >= layers[call.layer].layout.n_experts * AHEAD_SHARE;
    if (nearly_all && call.layer + 1 < (int) layers.size()) {
        for (int e = 0; e < layers[call.layer + 1].layout.n_experts; ++e) {
            expected.push_back({ call.layer + 1, 0, e });
        }
    }
    staging->drop_unless([this](const emc_piece_key & key) { return std::find(expected.begin(), expected.end(), key) != expected.end(); });
}

// Gives free buffers to the pieces that come next: the open stream's own, then what is expected.
void emc_cache::pump(std::vector<emc_read> & reads) {
    if (emc_call * call = streaming) {
        for (; call->next_unread < call->unread.size(); ++call->next_unread) {
            const int32_t       i      = call->unread[call->next_unread];
            const emc_piece_key key    = { call->layer, call->kind, call->experts[i] };
            const int           buffer = staging->take(key, call);
            if (buffer == EMC_NO_BUFFER) {
                return;
            }
            call->buffers[i] = buffer;
            call->pieces[i]  = &staging->piece(buffer);
            queue_staged_piece(key, buffer, reads);
        }
        reads.insert(reads.end(), call->held_back.begin(), call->held_back.end());
        call->held_back.clear();
    }
    for (; next_expected < expected.size(); ++next_expected) {
        const emc_piece_key & key = expected[next_expected];
        if (layers[key.layer].table->find(key.expert) != EMC_NO_SLOT || staging->has(key)) {
            continue;
        }
        const int buffer = staging->take_ahead(key);
        if (buffer == EMC_NO_BUFFER) {
            return;
        }
        counters.ahead_queued += 1;
        queue_staged_piece(key, buffer, reads);
    }
}

void emc_cache::pass(emc_call & call, int i) {
    if (call.slots[i] != EMC_NO_SLOT || call.to_pass[i].fetch_sub(1, std::memory_order_acq_rel) != 1) {
        return;
    }
    EMC_HAND_OVER();
    std::vector<emc_read> reads;
    {
        std::lock_guard<std::mutex> lock(mutex);
        staging->let_go(call.buffers[i]);
        call.buffers[i] = EMC_NO_BUFFER;
        pump(reads);
    }
    submit(reads);
}
