// SPDX-License-Identifier: MIT
// Every policy keeps the contract of the port; LRU also chooses as its name says.
#include "../src/core/policy.h"
#include "check.h"

#include <sstream>
#include <vector>

static void conform(const char * name, test_random & random) {
    const int n = 12;
    const auto policy = emc_policy_make(name, n);
    const auto twin   = emc_policy_make(name, n);
    CHECK(policy && std::string(policy->name()) == name);
    std::vector<uint8_t> inserted(n, 0);
    std::vector<uint8_t> evictable(n, 0);
    CHECK_EQ(policy->victim(evictable.data()), EMC_NO_SLOT);
    for (emc_tick now = 1; now < 5000; ++now) {
        const emc_slot slot = (emc_slot) random.in(0, n - 1);
        if (!inserted[slot]) {
            policy->on_insert(slot, now);
            twin->on_insert(slot, now);
            inserted[slot] = 1;
        } else {
            policy->on_hit(slot, now);
            twin->on_hit(slot, now);
        }
        bool any = false;
        for (int s = 0; s < n; ++s) {
            evictable[s] = inserted[s] && random.in(0, 2) == 0;
            any = any || evictable[s];
        }
        const emc_slot victim = policy->victim(evictable.data());
        CHECK_EQ(victim, twin->victim(evictable.data()));  // no hidden state: a replay decides alike
        CHECK_EQ(any, victim != EMC_NO_SLOT);
        if (any) {
            CHECK(evictable[victim]);
            if (random.in(0, 1)) {
                policy->on_evict(victim);
                twin->on_evict(victim);
                inserted[victim] = 0;
            }
        }
    }
}

static void lru() {
    const auto policy = emc_policy_make("lru", 4);
    std::vector<uint8_t> all(4, 1);
    for (emc_slot s = 0; s < 4; ++s) {
        policy->on_insert(s, 10 + (emc_tick) s);
    }
    CHECK_EQ(policy->victim(all.data()), 0);
    policy->on_hit(0, 20);
    CHECK_EQ(policy->victim(all.data()), 1);
    all[1] = 0;
    CHECK_EQ(policy->victim(all.data()), 2);
    policy->on_hit(2, 20);
    policy->on_hit(3, 20);
    CHECK_EQ(policy->victim(all.data()), 0);  // one tick for all: the lowest id
}

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));
    std::istringstream names(emc_policy_names());
    int n = 0;
    for (std::string name; std::getline(names, name, ' '); ++n) {
        conform(name.c_str(), random);
    }
    CHECK(n > 0);
    lru();
    CHECK(!emc_policy_make("no such policy", 4));
    return 0;
}
