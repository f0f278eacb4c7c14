// SPDX-License-Identifier: MIT
// An in-place comparison: is it faster with something or without, told from the tokens that are decoded anyway.
//
// Both ways take turns in windows of tokens, the order changing from pair to pair so that a drift of speed harms neither.
// After PAIRS pairs the median of their ratios decides, and the winner stays until the next comparison, each time
// twice as far away. `with` has to win by MIN_GAIN: what does not show a gain is off.
//
// Pure: durations in, a choice out.
#pragma once

#include <cstdint>

class emc_trial {
public:
    static constexpr int    WINDOW   = 8;     // tokens that count in a window; one more before them does not
    static constexpr int    PAIRS    = 8;     // even: as many begin with as without
    static constexpr double MIN_GAIN = 0.01;
    static constexpr int    FIRST    = 256;   // tokens until the first comparison: until then, with
    static constexpr int    REST     = 1024;  // from the first to the second
    static constexpr int    MAX_REST = 16384;

    // Whether the next token is to be decoded with it.
    bool with() const;

    // A token took this long. rows: tokens decoded side by side; a window is begun anew when it changes.
    void token(double seconds, int64_t rows);

    bool comparing() const { return resting == 0; }

    // Of the last complete comparison: the share of time that it saves (below 0: costs). 0 before the first.
    double gain() const { return last_gain; }

private:
    bool turn_with() const;
    void decide();

    int     pair     = 0;
    int     turn     = 0;    // 0, 1 inside the pair
    int     counted  = -1;   // tokens of the window; the first of a window belongs to the switch
    double  sum      = 0;
    double  times[2] = {0, 0};   // of the pair: without, with
    double  ratios[PAIRS] = {};
    int64_t width    = 0;

    bool    winner    = true;
    int     resting   = FIRST;   // tokens until the next comparison
    int     rest      = REST;
    double  last_gain = 0;
};
