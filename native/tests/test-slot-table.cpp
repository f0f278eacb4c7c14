// SPDX-License-Identifier: MIT
// The slot table against a plain model: maps and lists, written the obvious way.
#include "../src/core/slot-table.h"
#include "check.h"

#include <algorithm>
#include <list>
#include <map>

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
    // least recent among those that may go; experts of one tick cannot happen here: each step has its own
    int victim() const {
        if (empty() > 0) {
            return -1;
        }
        for (const int expert : recency) {
            const plain_slot & h = held.at(expert);
            if (h.state == emc_slot_state::READY && h.pins == 0 && h.slot < in_use) {
                return expert;
            }
        }
        return -1;
    }
};

} // namespace

static void run(test_random & random, int n_experts, int n_slots, int steps) {
    emc_slot_table table(n_experts, n_slots, emc_policy_make("lru", n_experts));
    plain_model model;
    model.in_use = n_slots;
    uint64_t stale = 0;

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
            const bool possible = model.available() > 0;
            const int  expected = model.victim();
            int evicted = -2;
            table.event(&expert, 1, now);
            const emc_slot slot = table.begin_load(expert, &evicted);
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
    for (int round = 0; round < 40; ++round) {
        const int n_experts = (int) random.in(1, 40);
        run(random, n_experts, (int) random.in(1, (uint64_t) n_experts), 3000);
    }
    return 0;
}
