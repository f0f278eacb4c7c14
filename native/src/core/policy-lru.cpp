// SPDX-License-Identifier: MIT
// Least recently used. A layer has tens of slots, so a scan is cheaper than keeping a list in order.
#include "check.h"
#include "policy.h"

#include <vector>

namespace {

class policy_lru : public emc_policy {
public:
    explicit policy_lru(int n_slots) : last_use(n_slots, 0) {}

    void on_insert(emc_slot slot, emc_tick now) override { last_use.at(slot) = now; }

    void on_hit(emc_slot slot, emc_tick now) override { last_use.at(slot) = now; }

    void on_evict(emc_slot slot) override { last_use.at(slot) = 0; }

    // Experts of one event share a tick; the lowest id goes first, so that a replay repeats the choice.
    emc_slot victim(const uint8_t * evictable) const override {
        emc_slot best = EMC_NO_SLOT;
        for (emc_slot slot = 0; slot < (emc_slot) last_use.size(); ++slot) {
            if (evictable[slot] && (best == EMC_NO_SLOT || last_use[slot] < last_use[best])) {
                best = slot;
            }
        }
        return best;
    }

    void reset() override { last_use.assign(last_use.size(), 0); }

    const char * name() const override { return "lru"; }

private:
    std::vector<emc_tick> last_use;
};

} // namespace

std::unique_ptr<emc_policy> emc_policy_lru(int n_slots) {
    return std::make_unique<policy_lru>(n_slots);
}
