// SPDX-License-Identifier: MIT
// The slot table against a plain model: maps and lists, written the obvious way.
#include "../src/core/slot-table.h"
#include "check.h"

#include <algorithm>
#include <list>
#include <map>
#include <sstream>
#include <vector>

namespace {

struct plain_slot {
    emc_slot       slot;
    uint32_t       generation;
    emc_slot_state state;
    int            pins;
};

struct plain_model {
    std::map<int, plain_slot> held;    // by expert: LOADING and READY
    std::list<plain_slot>     failed;  // FAILED, pinned
    std::list<int>            recency; // experts, least recent first
    int                       in_use;

    int empty() const {
        int n = in_use;
        for (const auto & h : held) {
            n -= h.second.slot < in_use;
        }
        for (const plain_slot & f : failed) {
            n -= f.slot < in_use;
        }
        return n;
    }
    int available() const {
        int n = empty();
        for (const auto & h : held) {
            n += h.second.state == emc_slot_state::READY && h.second.pins == 0 && h.second.slot < in_use;
        }
        return n;
    }

    bool has_empty() const { return empty() > 0; }

    // those that may go, by slot
    std::vector<int32_t> candidates() const {
        std::map<emc_slot, int32_t> by_slot;
        for (const auto & h : held) {
            if (h.second.state == emc_slot_state::READY && h.second.pins == 0 && h.second.slot < in_use) {
                by_slot[h.second.slot] = h.first;
            }
        }
        std::vector<int32_t> experts;
        for (const auto & s : by_slot) {
            experts.push_back(s.second);
        }
        return experts;
    }

    // experts of one tick cannot happen here: each step has its own
    int least_recent(const std::vector<int32_t> & experts) const {
        return *std::find_first_of(recency.begin(), recency.end(), experts.begin(), experts.end());
    }
};

} // namespace

static void run(test_random & random, const std::string & policy, int n_experts, int n_slots, int steps) {
    emc_slot_table table(n_experts, n_slots, emc_policy_make(policy, n_experts));
    const auto twin = emc_policy_make(policy, n_experts);  // hears the same, and names the victim that the table must evict
    plain_model model;
    model.in_use = n_slots;
    uint64_t stale   = 0;
    int      refused = 0;

    for (int step = 1; step <= steps; ++step) {
        const emc_tick now    = (emc_tick) step;
        const int      expert = (int) random.in(0, (uint64_t) n_experts - 1);
        const auto     known  = model.held.find(expert);
        CHECK_EQ(table.find(expert) != EMC_NO_SLOT, known != model.held.end());
        CHECK_EQ(table.available(), model.available());
        CHECK_EQ(table.empty(), model.empty());

        if (random.in(0, 19) == 0) {
            model.in_use = (int) random.in(1, (uint64_t) n_slots);
            table.use(model.in_use);
            for (emc_slot slot = model.in_use; slot < n_slots; ++slot) {
                const auto in_slot = [slot](const auto & h) { return h.second.slot == slot; };
                const auto h    = std::find_if(model.held.begin(), model.held.end(), in_slot);
                const bool busy = std::any_of(model.failed.begin(), model.failed.end(), [slot](const plain_slot & f) { return f.slot == slot; }) ||
                    (h != model.held.end() && (h->second.state != emc_slot_state::READY || h->second.pins > 0));
                const int gone = table.vacate(slot);
                CHECK_EQ(gone == emc_slot_table::EMC_BUSY, busy);
                if (gone >= 0) {
                    CHECK(h != model.held.end() && h->first == gone);
                    model.recency.remove(gone);
                    model.held.erase(h);
                }
            }
            table.check();
            continue;
        }
        if (known == model.held.end()) {
            bool possible = model.available() > 0;
            int  expected = -1;
            int  evicted  = -2;
            const bool of_worth = random.in(0, 2) == 0;
            // what has just been heard of is worth most to lru, and the model's order is that of loads
            if (!of_worth || policy == "lru" || random.in(0, 1)) {
                table.event(&expert, 1, now);
                twin->on_event(&expert, 1, now);
            }
            std::vector<int32_t> candidates = model.candidates();
            if (!model.has_empty() && !candidates.empty()) {
                CHECK(policy != "lru" || twin->victim(candidates.data(), (int) candidates.size()) == model.least_recent(candidates));
                if (of_worth) {
                    candidates.insert(candidates.begin(), expert);
                }
                expected = twin->victim(candidates.data(), (int) candidates.size());
                if (expected == expert) {
                    possible = false;
                    expected = -1;
                    refused += 1;
                }
            }
            const emc_slot slot = table.begin_load(expert, &evicted, of_worth);
            if (!possible) {
                CHECK_EQ(evicted, -1);
            }
            CHECK_EQ(slot != EMC_NO_SLOT, possible);
            if (possible) {
                CHECK_EQ(evicted, expected);
                if (expected >= 0) {
                    CHECK_EQ(slot, model.held.at(expected).slot);
                    model.held.erase(expected);
                    model.recency.remove(expected);
                }
                model.held[expert] = { slot, table.generation(slot), emc_slot_state::LOADING, 1 };
                model.recency.push_back(expert);
            }
        } else {
            plain_slot & h = known->second;
            CHECK_EQ(table.find(expert), h.slot);
            CHECK_EQ(table.generation(h.slot), h.generation);
            CHECK(table.state(h.slot) == h.state);
            switch (random.in(0, 4)) {
                case 0:
                    table.event(&expert, 1, now);
                    twin->on_event(&expert, 1, now);
                    model.recency.remove(expert);
                    model.recency.push_back(expert);
                    break;
                case 1:
                    table.pin(h.slot);
                    h.pins += 1;
                    break;
                case 2:
                    if (h.pins > 0) {
                        table.unpin(h.slot);
                        h.pins -= 1;
                    }
                    break;
                case 3:
                    // an older generation changes nothing
                    table.complete(h.slot, h.generation - 1);
                    table.fail(h.slot, h.generation - 1);
                    stale += 2;
                    if (h.state == emc_slot_state::LOADING) {
                        table.complete(h.slot, h.generation);
                        h.state = emc_slot_state::READY;
                    }
                    break;
                default:
                    if (h.state == emc_slot_state::LOADING) {
                        table.fail(h.slot, h.generation);
                        if (h.pins > 0) {
                            model.failed.push_back(h);
                        }
                        model.recency.remove(expert);
                        model.held.erase(known);
                    }
            }
        }
        if (!model.failed.empty() && random.in(0, 3) == 0) {
            plain_slot & f = model.failed.front();
            CHECK(table.state(f.slot) == emc_slot_state::FAILED);
            table.unpin(f.slot);
            if (--f.pins == 0) {
                CHECK(table.state(f.slot) == emc_slot_state::EMPTY);
                model.failed.pop_front();
            }
        }
        CHECK_EQ(table.stale(), stale);
        table.check();
    }
}

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));
    std::istringstream names(emc_policy_names());
    for (std::string policy; names >> policy;) {
        for (int round = 0; round < 40; ++round) {
            const int n_experts = (int) random.in(1, 40);
            run(random, policy, n_experts, (int) random.in(1, (uint64_t) n_experts), 3000);
        }
    }
    return 0;
}
