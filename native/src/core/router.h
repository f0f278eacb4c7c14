// SPDX-License-Identifier: MIT
// A router in eight bits: a guess at which experts the next layer will choose, from the state that this layer sees.
//
// The state changes little from one layer to the next, so the next layer's router, asked too early, is right more often
// than not. Eight bits are enough for a guess: weights are rounded row by row, the state as a whole, and the sums are
// exact. A guess only ever starts a read; what is computed never depends on it.
#pragma once

#include <cstdint>
#include <vector>

struct emc_router_weights {
    int           n_experts = 0;
    int           width     = 0;        // elements of the state
    const float * weights   = nullptr;  // [n_experts][width]
    const float * from      = nullptr;  // [width] norm weights that the seen state carries; null: none
    const float * to        = nullptr;  // [width] norm weights of the layer that is guessed for; null: none
    const float * bias      = nullptr;  // [n_experts] added to the scores; null: none
    const float * choice    = nullptr;  // [n_experts] added after the sigmoid, where a model chooses so; null: none
};

class emc_router {
public:
    explicit emc_router(const emc_router_weights & weights);

    int n_experts() const { return (int) scales.size(); }
    int width()     const { return n_width; }

    // Write the n highest scoring experts for state[width] to top, best first. REQUIRES: 0 <= n <= n_experts.
    // Not for two threads at once: it has scratch of its own.
    void guess(const float * state, int n, int32_t * top);

private:
    int                  n_width;
    std::vector<int8_t>  rows;    // [n_experts][n_width]
    std::vector<float>   scales;  // [n_experts]
    std::vector<float>   bias;    // [n_experts] or empty
    std::vector<float>   choice;  // [n_experts] or empty

    std::vector<int8_t>  rounded;  // [n_width], scratch
    std::vector<float>   scores;   // [n_experts], scratch
    std::vector<int32_t> ids;      // [n_experts], scratch
};
