// SPDX-License-Identifier: MIT
// Past moments that resemble the present one vote for what followed them.
//
// A router's choice depends on the token and on what was said before it. Both come back: a word, a phrase, a topic.
// So the experts that a layer chose tell where in its own history it has been before, and what came next there is
// the best guess of what comes next here. With a as an event's age (0 = now):
//
//   likeness(a) = likeness(a) one event ago / 2 + experts that event a shares with now * BITS / sqrt(its experts)
//   weight(a)   = 2 ^ likeness(a)
//   echo(a)     = echo(a + 1) / 2 + weight(a + 1)
//   self(a)     = sum of weights / SELF_VOTE * (3/4) ^ a
//   score(e)    = sum of echo(a) + self(a) over the events that chose expert e
//
// The resident expert with the lowest score goes.
//
// Likeness: one event ago, age a named the event before this one, so a phrase that matches on weighs more than a word.
// The root keeps one scale for models that use few experts or many, and for batches of several tokens. Weight: each
// shared expert multiplies, so a few close matches outvote the many that share an expert by chance; with no match all
// weigh alike, and the score is a count of uses. Echo: what came later after a match counts less, as it would be needed
// later. Self: where nothing returns in order, the last few events are the best guess.
//
// Cost of an event: two passes over the history, and a step for each time that its experts occur there. Cost of its
// victims: a step for each time that a candidate occurs there, once an event. Memory of a layer: 64 bytes an expert for
// the history, 16 for its score, and 10 KiB.
#include "policy.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

constexpr int HISTORY = 512;  // events; a power of two
constexpr int WORDS   = HISTORY / 64;

constexpr int    STEPS     = 8;     // likeness is counted in eighths of a bit
constexpr double BITS      = 3.25;  // docs/expert-cache-design.md shows how little hangs on these two
constexpr int    SELF_VOTE = 8;

// 2^20 * 2^(-i / STEPS)
constexpr uint32_t FRACTION[STEPS] = { 1048576, 961548, 881744, 808563, 741455, 679917, 623487, 571740 };

class policy_echo : public emc_policy {
public:
    explicit policy_echo(int n_experts_) :
        n_experts(n_experts_), used(WORDS * (size_t) n_experts_, 0), shared(HISTORY, 0), gain(HISTORY, 0), likeness(HISTORY, 0),
        vote(HISTORY, 0), score(n_experts_, 0), scored(n_experts_, 0) {}

    void on_event(const int32_t * experts, int n, emc_tick) override {
        n_events += 1;
        here   = (int) (n_events % HISTORY);
        oldest = (int) std::min<uint64_t>(n_events, HISTORY) - 1;

        // the oldest event makes room for this one
        uint64_t *     word = &used[(size_t) (here / 64) * n_experts];
        const uint64_t bit  = 1ull << (here % 64);
        for (int e = 0; e < n_experts; ++e) {
            word[e] &= ~bit;
        }
        std::move_backward(gain.begin(), gain.end() - 1, gain.end());
        gain[0] = n > 0 ? (uint32_t) std::lround(STEPS * BITS / std::sqrt((double) n)) : 0;

        compare(experts, n);
        count_votes();
        for (int i = 0; i < n; ++i) {
            word[experts[i]] |= bit;
        }
    }

    int32_t victim(const int32_t * candidates, int n) override {
        int32_t lowest = candidates[0];
        for (int i = 1; i < n; ++i) {
            if (score_of(candidates[i]) < score_of(lowest)) {
                lowest = candidates[i];
            }
        }
        return lowest;
    }

    const char * name() const override { return "echo"; }

private:
    // visit(age) for each event of the history that used the expert
    template <typename visit_fn>
    void each_use(int32_t expert, visit_fn visit) const {
        for (int w = 0; w < WORDS; ++w) {
            for (uint64_t left = used[(size_t) w * n_experts + expert]; left; left &= left - 1) {
                visit((here - (w * 64 + __builtin_ctzll(left))) & (HISTORY - 1));
            }
        }
    }

    void compare(const int32_t * experts, int n) {
        std::fill(shared.begin(), shared.end(), 0);
        for (int i = 0; i < n; ++i) {
            each_use(experts[i], [this](int age) { shared[age] += 1; });
        }
        for (int age = 1; age <= oldest; ++age) {
            likeness[age] = likeness[age] / 2 + shared[age] * gain[age];
        }
    }

    // vote(a) = echo(a) + self(a)
    void count_votes() {
        uint32_t most = 0;
        for (int age = 1; age <= oldest; ++age) {
            most = std::max(most, likeness[age]);
        }
        uint64_t sum  = 0;
        uint64_t echo = 0;
        for (int age = oldest; age > 0; --age) {
            const uint32_t below  = most - likeness[age];  // only ratios of weights matter: the largest is 2^20
            const uint64_t weight = below < 32 * STEPS ? FRACTION[below % STEPS] >> (below / STEPS) : 0;
            sum += weight;
            vote[age] = echo;
            echo = echo / 2 + weight;
        }
        vote[0] = echo;
        uint64_t self = sum / SELF_VOTE;
        for (int age = 0; age <= oldest && self > 0; ++age) {
            vote[age] += self;
            self = self * 3 / 4;
        }
    }

    uint64_t score_of(int32_t expert) {
        if (scored[expert] != n_events) {
            scored[expert] = n_events;
            uint64_t sum = 0;
            each_use(expert, [this, &sum](int age) { sum += vote[age]; });
            score[expert] = sum;
        }
        return score[expert];
    }

    const int             n_experts;
    uint64_t              n_events = 0;
    int                   here     = 0;  // the present event's place in the history
    int                   oldest   = 0;  // age of the oldest event in it
    std::vector<uint64_t> used;          // [word][expert], a bit for each place
    std::vector<uint32_t> shared;        // by age, as are the next three
    std::vector<uint32_t> gain;          // likeness that one shared expert adds
    std::vector<uint32_t> likeness;      // in 1 / STEPS bits
    std::vector<uint64_t> vote;
    std::vector<uint64_t> score;         // by expert, as of event scored[expert]
    std::vector<uint64_t> scored;
};

} // namespace

std::unique_ptr<emc_policy> emc_policy_echo(int n_experts) {
    return std::make_unique<policy_echo>(n_experts);
}
