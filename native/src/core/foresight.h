// SPDX-License-Identifier: MIT
// How far guesses may be trusted: for each layer and rank, the share of recent guesses that came true.
//
// Only guesses at experts that were not in a slot count, as only those start a read; they come true less often than
// guesses at large. A rank that is not trusted goes on being scored, so trust can come back.
#pragma once

#include <cstddef>
#include <vector>

class emc_foresight {
public:
    // A wrong read takes the drive as long as a right one saves, and a drive that is never idle has no time to give away:
    // well over half have to be right.
    static constexpr float TRUST  = 0.65f;
    static constexpr float WEIGHT = 1.0f / 64;  // of the newest guess

    emc_foresight(int n_layers, int n_ranks) : ranks(n_ranks), share((size_t) n_layers * n_ranks, 0.75f) {}

    bool trusts(int layer, int rank) const { return share[(size_t) layer * ranks + rank] >= TRUST; }

    void came(int layer, int rank, bool true_) {
        float & s = share[(size_t) layer * ranks + rank];
        s += ((true_ ? 1.0f : 0.0f) - s) * WEIGHT;
    }

    int n_ranks() const { return ranks; }

private:
    int                ranks;
    std::vector<float> share;  // [layer][rank]
};
