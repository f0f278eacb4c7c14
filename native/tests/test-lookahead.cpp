// SPDX-License-Identifier: MIT
// The parts that decide what is read ahead: the quantised router, the trust in its guesses, and the trial that switches
// it off.
#include "../src/core/foresight.h"
#include "../src/core/router.h"
#include "../src/core/trial.h"
#include "check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

struct model {
    int n, width;
    std::vector<float> weights, from, to, bias;
};

float normal(test_random & random) {
    float sum = 0;
    for (int i = 0; i < 12; ++i) {
        sum += (float) random.in(0, 1000) / 1000;
    }
    return sum - 6;
}

model random_model(test_random & random, int n, int width) {
    model m{ n, width, {}, {}, {}, {} };
    for (int i = 0; i < n * width; ++i) {
        m.weights.push_back(normal(random));
    }
    for (int i = 0; i < width; ++i) {
        m.from.push_back(0.5f + (float) random.in(0, 100) / 100);
        m.to.push_back(0.5f + (float) random.in(0, 100) / 100);
    }
    for (int e = 0; e < n; ++e) {
        m.bias.push_back(normal(random));
    }
    return m;
}

std::vector<int32_t> exact(const model & m, const std::vector<float> & state, bool norms, bool bias, int n) {
    std::vector<std::pair<double, int32_t>> scores;
    for (int e = 0; e < m.n; ++e) {
        double score = bias ? m.bias[e] : 0;
        for (int i = 0; i < m.width; ++i) {
            score += (double) m.weights[(size_t) e * m.width + i] * state[i] * (norms ? (double) m.to[i] / m.from[i] : 1.0);
        }
        scores.push_back({ -score, e });
    }
    std::sort(scores.begin(), scores.end());
    std::vector<int32_t> top;
    for (int i = 0; i < n; ++i) {
        top.push_back(scores[i].second);
    }
    return top;
}

// Rounding moves experts of nearly equal score only: nearly all of the true choice is found, on average.
void test_router_finds_what_the_exact_one_chooses(test_random & random) {
    int found = 0, all = 0;
    for (int round = 0; round < 60; ++round) {
        const int  n     = (int) random.in(8, 128);
        const int  width = (int) random.in(64, 700);
        const bool norms = random.in(0, 1);
        const bool bias  = random.in(0, 1);
        const model m = random_model(random, n, width);
        emc_router_weights w;
        w.n_experts = n;
        w.width     = width;
        w.weights   = m.weights.data();
        w.from      = norms ? m.from.data() : nullptr;
        w.to        = norms ? m.to.data()   : nullptr;
        w.bias      = bias  ? m.bias.data() : nullptr;
        emc_router router(w);
        std::vector<float> state;
        for (int i = 0; i < width; ++i) {
            state.push_back(normal(random));
        }
        std::vector<int32_t> top(4);
        router.guess(state.data(), 4, top.data());
        for (const int32_t e : exact(m, state, norms, bias, 4)) {
            found += std::count(top.begin(), top.end(), e);
            all   += 1;
        }
    }
    CHECK(found >= all * 95 / 100);
}

// What is no number, or far too large, must neither crash nor win.
void test_router_survives_any_state() {
    const float inf = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> weights = { 1, 0, 0, 1, nan, inf, 0, 0 };
    emc_router_weights w;
    w.n_experts = 4;
    w.width     = 2;
    w.weights   = weights.data();
    emc_router router(w);
    for (const std::vector<float> & state : { std::vector<float>{ nan, nan }, { inf, 1 }, { 0, 0 }, { 1e38f, -1e38f }, { -inf, nan } }) {
        std::vector<int32_t> top(4);
        router.guess(state.data(), 4, top.data());
        std::sort(top.begin(), top.end());
        CHECK((top == std::vector<int32_t>{ 0, 1, 2, 3 }));
    }
    std::vector<int32_t> top(1);
    router.guess(std::vector<float>{ 2, 1 }.data(), 1, top.data());
    CHECK_EQ(top[0], 0);
}

// Where a model adds a bias after the sigmoid, that order is the one that counts.
void test_router_follows_a_choice_bias() {
    std::vector<float> weights = { 4, 3, -4 };
    std::vector<float> choice  = { 0, 0.5f, 0 };
    emc_router_weights w;
    w.n_experts = 3;
    w.width     = 1;
    w.weights   = weights.data();
    w.choice    = choice.data();
    emc_router router(w);
    std::vector<int32_t> top(3);
    router.guess(std::vector<float>{ 1 }.data(), 3, top.data());
    CHECK((top == std::vector<int32_t>{ 1, 0, 2 }));
}

void test_foresight_loses_and_regains_trust() {
    emc_foresight f(2, 3);
    CHECK(f.trusts(0, 0) && f.trusts(1, 2));
    for (int i = 0; i < 100; ++i) {
        f.came(1, 2, i % 4 == 0);  // a quarter
    }
    CHECK(!f.trusts(1, 2) && f.trusts(1, 1) && f.trusts(0, 2));
    for (int i = 0; i < 200; ++i) {
        f.came(1, 2, i % 4 != 0);
    }
    CHECK(f.trusts(1, 2));
}

// One comparison: seconds a token with and without, noise and drift as shares of them. How many tokens it took.
int decide(emc_trial & trial, double without, double with, double noise, double drift, test_random & random) {
    while (!trial.comparing()) {
        trial.token(1, 1);
    }
    int tokens = 0;
    while (trial.comparing()) {
        const double base  = trial.with() ? with : without;
        const double shake = 1 + noise * ((double) random.in(0, 2000) / 1000 - 1);
        trial.token(base * shake * (1 + drift * tokens), 1);
        tokens += 1;
        CHECK(tokens < 1000);
    }
    return tokens;
}

void test_trial_keeps_what_wins(test_random & random) {
    for (int round = 0; round < 200; ++round) {
        const double drift = (double) random.in(0, 10) / 2000;  // a speed that changes all along favours neither side
        emc_trial wins, loses, same;
        CHECK(wins.with() && !wins.comparing());  // until it is known better
        CHECK_EQ(decide(wins, 1.0, 0.9, 0.1, drift, random), 2 * emc_trial::PAIRS * (emc_trial::WINDOW + 1) + 1);
        CHECK(wins.with() && wins.gain() > 0.03);
        decide(loses, 1.0, 1.1, 0.1, drift, random);
        CHECK(!loses.with() && loses.gain() < -0.03);
        decide(same, 1.0, 1.0, 0.0, 0.0, random);
        CHECK(!same.with());  // what shows no gain is off
    }
}

void test_trial_comes_again_ever_later(test_random & random) {
    emc_trial trial;
    int rest = emc_trial::REST;
    for (int round = 0; round < 6; ++round) {
        decide(trial, 1.0, round % 2 ? 0.8 : 1.2, 0, 0, random);
        CHECK_EQ(trial.with(), round % 2 == 1);
        int tokens = 0;
        while (!trial.comparing()) {
            trial.token(1.0, 1);
            tokens += 1;
        }
        CHECK_EQ(tokens, rest);
        rest = std::min(rest * 2, emc_trial::MAX_REST);
    }
}

// A batch of another width is another speed: its window is begun anew, never mixed.
void test_trial_does_not_mix_widths() {
    emc_trial trial;
    int64_t rows = 1;
    for (int i = 0; i < emc_trial::FIRST; ++i) {
        trial.token(1, 1);
    }
    for (int i = 0; i < 5000; ++i) {
        rows = i % 5 == 0 ? 3 - rows : rows;
        trial.token(rows == 1 ? 1.0 : 9.0, rows);
    }
    CHECK(trial.comparing());  // no window of eight was ever of one width
}

} // namespace

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));
    test_router_finds_what_the_exact_one_chooses(random);
    test_router_survives_any_state();
    test_router_follows_a_choice_bias();
    test_foresight_loses_and_regains_trust();
    test_trial_keeps_what_wins(random);
    test_trial_comes_again_ever_later(random);
    test_trial_does_not_mix_widths();
    return 0;
}
