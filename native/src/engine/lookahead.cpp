// SPDX-License-Identifier: MIT
#include "lookahead.h"

#include <algorithm>

emc_lookahead::emc_lookahead(int n_layers, int n_ranks, bool on_trial_) :
    foresight(n_layers, n_ranks), on_trial(on_trial_), layers((size_t) n_layers) {
    for (auto & guesses : layers) {
        guesses.reserve((size_t) n_ranks);
    }
}

void emc_lookahead::token(clock::time_point now, int64_t rows) {
    if (timing) {
        trial.token(std::chrono::duration<double>(now - began).count(), rows);
    }
    timing = true;
    began  = now;
}

void emc_lookahead::event(int layer, const int32_t * experts, int n) {
    std::vector<one_guess> & guesses = layers[(size_t) layer];
    for (size_t rank = 0; rank < guesses.size(); ++rank) {
        if (guesses[rank].missing) {
            foresight.came(layer, (int) rank, std::find(experts, experts + n, guesses[rank].expert) != experts + n);
        }
    }
    guesses.clear();
}

int emc_lookahead::next(int * layer) {
    const std::vector<one_guess> & guesses = layers[(size_t) current];
    while (next_rank < guesses.size()) {
        const size_t rank = next_rank++;
        if (guesses[rank].missing && foresight.trusts(current, (int) rank)) {
            *layer = current;
            return guesses[rank].expert;
        }
    }
    return -1;
}
