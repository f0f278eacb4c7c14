// SPDX-License-Identifier: MIT
// The part of the cache that reads ahead what a layer will probably choose.
#include "../core/hand-over.h"
#include "cache.h"

// Guessed pieces that may be under way at once: enough that the drive does not idle between two, and few, since what is
// asked for meanwhile has to wait for them.
static constexpr int GUESSED_PIECES = 3;

int emc_cache::guesses_wanted() const {
    std::lock_guard<std::mutex> lock(mutex);
    return lookahead.active() ? lookahead.n_ranks() : 0;
}

void emc_cache::foresee(int layer_id, const int32_t * experts, int n) {
    EMC_HAND_OVER();
    std::vector<emc_read> reads;
    {
        std::lock_guard<std::mutex> lock(mutex);
        const emc_slot_table & table = *layers.at(layer_id).table;
        lookahead.guess(layer_id, experts, n, [&table](int32_t e) { return table.find(e) == EMC_NO_SLOT; });
        follow_guesses(reads);
    }
    submit(reads);
}

// Begins the read of guessed experts while the drive has nothing to do that was asked for.
void emc_cache::follow_guesses(std::vector<emc_read> & reads) {
    if (options.n_guesses == 0 || streaming || closing) {
        return;
    }
    int layer_id = 0;
    while (asked_left == 0 && guessed_left < GUESSED_PIECES) {
        const int expert = lookahead.next(&layer_id);
        if (expert < 0) {
            return;
        }
        layer_state &    layer = layers[layer_id];
        emc_slot_table & table = *layer.table;
        if (table.find(expert) != EMC_NO_SLOT) {
            continue;
        }
        // what is guessed and already there must not make room
        const auto each_resident = [&](void (emc_slot_table::*act)(emc_slot)) {
            lookahead.each_guess(layer_id, [&](int32_t e) {
                if (e != expert && table.find(e) != EMC_NO_SLOT) {
                    (table.*act)(table.find(e));
                }
            });
        };
        int evicted = -1;
        each_resident(&emc_slot_table::pin);
        const emc_slot slot = load(layer_id, expert, &evicted, false);
        each_resident(&emc_slot_table::unpin);
        if (slot == EMC_NO_SLOT) {
            return;
        }
        table.unpin(slot);  // LOADING keeps it
        layer.unproven[slot] = 1;
        guessed_left        += layer.slot_left[slot];
        counters.guessed    += 1;
        for (int kind = 0; kind < (int) layer.layout.kinds.size(); ++kind) {
            queue_slot_piece(layer_id, slot, kind, reads);
        }
    }
}
