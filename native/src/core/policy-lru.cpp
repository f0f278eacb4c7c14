// SPDX-License-Identifier: MIT
// Least recently used: the control that every other policy is judged against.
#include "policy.h"

#include <vector>

namespace {

class policy_lru : public emc_policy {
public:
    explicit policy_lru(int n_experts) : last_use(n_experts, 0) {}

    void on_event(const int32_t * experts, int n, emc_tick now) override {
        for (int i = 0; i < n; ++i) {
            last_use[experts[i]] = now;
        }
    }

    int32_t victim(const int32_t * candidates, int n) override {
        int32_t oldest = candidates[0];
        for (int i = 1; i < n; ++i) {
            if (last_use[candidates[i]] < last_use[oldest]) {
                oldest = candidates[i];
            }
        }
        return oldest;
    }

    const char * name() const override { return "lru"; }

private:
    std::vector<emc_tick> last_use;  // by expert
};

} // namespace

std::unique_ptr<emc_policy> emc_policy_lru(int n_experts) {
    return std::make_unique<policy_lru>(n_experts);
}
