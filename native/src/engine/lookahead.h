// SPDX-License-Identifier: MIT
// What to read before it is asked for, and what came of it. Bookkeeping only; the caller holds the cache's mutex.
//
// Guesses at a layer's next choice come best first. Those that are in no slot may start a read, if their rank has been
// right often enough; when the layer's event comes, every guess is scored and what has not been read is forgotten.
// Whether to read ahead at all is tried out in place: see trial.h.
#pragma once

#include "../core/foresight.h"
#include "../core/trial.h"

#include <chrono>
#include <cstdint>
#include <vector>

class emc_lookahead {
public:
    using clock = std::chrono::steady_clock;

    // n_ranks 0: never reads ahead. on_trial: only as long as that is faster.
    emc_lookahead(int n_layers, int n_ranks, bool on_trial);

    // Whether guesses are wanted now.
    bool active() const { return n_ranks() > 0 && (!on_trial || trial.with()); }
    int  n_ranks() const { return foresight.n_ranks(); }

    // A decode batch begins its first layer.
    void token(clock::time_point now, int64_t rows);

    // The layer's event is none of decode: what was guessed does not count, and no token is timed across it.
    void interrupted(int layer) {
        timing = false;
        layers[(size_t) layer].clear();
    }

    // is_missing(expert): it is in no slot.
    template <typename is_missing_fn> void guess(int layer, const int32_t * experts, int n, is_missing_fn is_missing) {
        current = layer;
        next_rank = 0;
        std::vector<one_guess> & guesses = layers[(size_t) layer];
        guesses.clear();
        for (int rank = 0; rank < n && rank < n_ranks(); ++rank) {
            guesses.push_back({ experts[rank], is_missing(experts[rank]) });
        }
    }

    // The layer has chosen: scores what was guessed for it.
    void event(int layer, const int32_t * experts, int n);

    // The next expert worth a read, of *layer; -1 if there is none.
    int next(int * layer);

    // is_guessed for the layer that next returned: such an expert should keep its slot.
    template <typename fn> void each_guess(int layer, fn f) const {
        for (const one_guess & g : layers[(size_t) layer]) {
            f(g.expert);
        }
    }

    double gain()      const { return trial.gain(); }

private:
    struct one_guess {
        int32_t expert;
        bool    missing;
    };

    emc_foresight                       foresight;
    emc_trial                           trial;
    const bool                          on_trial;
    std::vector<std::vector<one_guess>> layers;         // [layer], by rank; empty after its event
    int                                 current   = 0;  // the layer that was guessed for last
    size_t                              next_rank = 0;
    bool                                timing    = false;
    clock::time_point                   began;
};
