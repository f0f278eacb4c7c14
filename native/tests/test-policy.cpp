// SPDX-License-Identifier: MIT
// Every policy keeps the contract of the port, and chooses as a plain model of it does that keeps everything.
#include "../src/core/policy.h"
#include "check.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <functional>
#include <set>
#include <sstream>
#include <vector>

using history = std::vector<std::vector<int32_t>>;  // events, oldest first

static int32_t plain_lru(const history & events, const std::vector<int32_t> & candidates) {
    const auto last_use = [&](int32_t expert) {
        int last = -1;
        for (int t = 0; t < (int) events.size(); ++t) {
            for (const int32_t e : events[t]) {
                last = e == expert ? t : last;
            }
        }
        return last;
    };
    int32_t best = candidates[0];
    for (const int32_t c : candidates) {
        best = last_use(c) < last_use(best) ? c : best;
    }
    return best;
}

// The formula at the head of policy-echo.cpp, by the book: likeness from the events themselves, votes by event.
static int32_t plain_echo(const history & events, const std::vector<int32_t> & candidates) {
    const int now    = (int) events.size() - 1;
    const int oldest = std::max(0, now - 511);
    const auto step = [](size_t n) { return (int) std::lround(8 * 3.25 / std::sqrt((double) n)); };
    std::vector<std::bitset<128>> sets(events.size());
    for (size_t t = 0; t < events.size(); ++t) {
        for (const int32_t e : events[t]) {
            sets[t].set((size_t) e);
        }
    }
    static const uint64_t fraction[8] = { 1048576, 961548, 881744, 808563, 741455, 679917, 623487, 571740 };
    std::vector<int> likeness(events.size(), 0);
    int most = 0;
    for (int s = oldest; s < now; ++s) {
        const int back = std::min(s, 64);  // halved so often, nothing is left of what matched before
        for (int k = back; k >= 0; --k) {
            likeness[s] = likeness[s] / 2 + (int) (sets[now - k] & sets[s - k]).count() * step(events[s - k].size());
        }
        most = std::max(most, likeness[s]);
    }
    std::vector<uint64_t> vote(events.size(), 0);
    uint64_t echo = 0;
    uint64_t sum  = 0;
    for (int s = oldest; s < now; ++s) {
        const int below = most - likeness[s];
        const uint64_t weight = below < 256 ? fraction[below % 8] >> (below / 8) : 0;
        sum += weight;
        echo = echo / 2 + weight;
        vote[s + 1] = echo;
    }
    uint64_t self = sum / 8;
    for (int s = now; s >= oldest; --s) {
        vote[s] += self;
        self = self * 3 / 4;
    }
    const auto score = [&](int32_t expert) {
        uint64_t total = 0;
        for (int s = oldest; s <= now; ++s) {
            for (const int32_t e : events[s]) {
                total += e == expert ? vote[s] : 0;
            }
        }
        return total;
    };
    int32_t best = candidates[0];
    for (const int32_t c : candidates) {
        best = score(c) < score(best) ? c : best;
    }
    return best;
}

static std::vector<int32_t> some(test_random & random, int n_experts, int n) {
    std::set<int32_t> chosen;
    while ((int) chosen.size() < n) {
        chosen.insert((int32_t) random.in(0, (uint64_t) n_experts - 1));
    }
    return { chosen.begin(), chosen.end() };
}

// Events as routers make them: a few phrases that return, with some noise, and now and then a large batch.
static void follows_model(const char * name, test_random & random,
        const std::function<int32_t(const history &, const std::vector<int32_t> &)> & model) {
    const int n_experts = (int) random.in(1, 80);
    const int n_used    = (int) random.in(1, (uint64_t) std::min(8, n_experts));
    const auto policy   = emc_policy_make(name, n_experts);
    CHECK(policy && std::string(policy->name()) == name);
    history phrases;
    for (int i = 0; i < 20; ++i) {
        phrases.push_back(some(random, n_experts, n_used));
    }
    history events;
    size_t at = 0;
    for (emc_tick now = 1; now < 1200; ++now) {
        at = random.in(0, 9) == 0 ? random.in(0, phrases.size() - 1) : (at + 1) % phrases.size();
        std::vector<int32_t> event = phrases[at];
        if (random.in(0, 3) == 0) {
            event = some(random, n_experts, random.in(0, 20) == 0 ? (int) random.in(1, (uint64_t) n_experts) : n_used);
        }
        events.push_back(event);
        policy->on_event(event.data(), (int) event.size(), now * 3);
        // the model takes its time: ask it often at first and around the moment when the history is full
        if (now < 60 || (now > 505 && now < 520) || random.in(0, 50) == 0) {
            const auto candidates = some(random, n_experts, (int) random.in(1, (uint64_t) n_experts));
            const int32_t victim = policy->victim(candidates.data(), (int) candidates.size());
            CHECK_EQ(victim, model(events, candidates));
            CHECK_EQ(policy->victim(candidates.data(), (int) candidates.size()), victim);  // to ask changes nothing
        }
    }
}

static void lru() {
    const auto policy = emc_policy_make("lru", 5);
    const std::vector<int32_t> all = { 2, 0, 1 };
    CHECK_EQ(policy->victim(all.data(), 3), 2);  // never used: the first
    const int32_t event[] = { 0, 2 };
    policy->on_event(event, 2, 10);
    CHECK_EQ(policy->victim(all.data(), 3), 1);
    policy->on_event(&all[2], 1, 11);
    CHECK_EQ(policy->victim(all.data(), 3), 2);  // 0 and 2 share a tick
}

// A phrase that returns: what followed it stays, the sooner the rather, although it was used least recently.
static void echo() {
    const auto policy = emc_policy_make("echo", 32);
    emc_tick now = 0;
    const auto event = [&](int32_t a, int32_t b) {
        const int32_t pair[] = { a, b };
        policy->on_event(pair, 2, ++now);
    };
    event(0, 1);
    event(2, 3);  // follows 0 1
    for (int32_t e = 10; e < 20; e += 2) {
        event(e, e + 1);
    }
    event(0, 1);
    const int32_t candidates[] = { 2, 10, 14, 18, 19 };
    CHECK_EQ(policy->victim(candidates, 5), 18);
    CHECK_EQ(policy->victim(candidates, 3), 14);
    CHECK_EQ(policy->victim(candidates, 2), 10);
}

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));
    const std::vector<std::pair<std::string, std::function<int32_t(const history &, const std::vector<int32_t> &)>>> models = {
        { "echo", plain_echo }, { "lru", plain_lru },
    };
    std::istringstream names(emc_policy_names());
    size_t n = 0;
    for (std::string name; names >> name; ++n) {
        CHECK(n < models.size() && models[n].first == name);  // each policy has its model
        for (int round = 0; round < 8; ++round) {
            follows_model(name.c_str(), random, models[n].second);
        }
    }
    CHECK_EQ(n, models.size());
    lru();
    echo();
    CHECK(emc_policy_make(EMC_DEFAULT_POLICY, 1));
    CHECK(!emc_policy_make("no such policy", 4));
    return 0;
}
