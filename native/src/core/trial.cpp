// SPDX-License-Identifier: MIT
#include "trial.h"

#include <algorithm>

// without first in even pairs, with first in odd ones
bool emc_trial::turn_with() const {
    return (turn == 1) == (pair % 2 == 0);
}

bool emc_trial::with() const {
    return comparing() ? turn_with() : winner;
}

void emc_trial::token(double seconds, int64_t rows) {
    if (!comparing()) {
        resting -= 1;
        return;
    }
    if (rows != width) {
        width   = rows;
        counted = -1;
        sum     = 0;
        return;
    }
    if (counted++ < 0) {
        return;
    }
    sum += seconds;
    if (counted < WINDOW) {
        return;
    }
    times[turn_with()] = sum;
    counted = -1;
    sum     = 0;
    turn   += 1;
    if (turn == 2) {
        ratios[pair] = times[0] > 0 ? times[1] / times[0] : 1;
        turn  = 0;
        pair += 1;
    }
    if (pair == PAIRS) {
        decide();
    }
}

void emc_trial::decide() {
    std::sort(ratios, ratios + PAIRS);
    last_gain = 1 - (ratios[PAIRS / 2 - 1] + ratios[PAIRS / 2]) / 2;
    winner    = last_gain >= MIN_GAIN;
    pair      = 0;
    resting   = rest;
    rest      = std::min(rest * 2, MAX_REST);
}
