// SPDX-License-Identifier: MIT
#include "budget.h"

#include <algorithm>

static std::string mib(uint64_t bytes) {
    return std::to_string(emc_sum(bytes, (1 << 20) - 1) >> 20) + " MiB";
}

emc_budget emc_budget_fit(const emc_budget_request & request) {
    emc_budget budget;
    if (request.round_bytes == 0 || request.n_experts <= 0) {
        budget.reason = "the model has no experts";
        return budget;
    }
    if (request.n_used < 1 || request.n_used > request.n_experts) {
        budget.reason = "the model says that a token uses " + std::to_string(request.n_used) + " of " + std::to_string(request.n_experts) + " experts";
        return budget;
    }
    budget.cycle_bytes = emc_product(request.round_bytes, (uint64_t) request.n_used);

    uint64_t rounds = std::min<uint64_t>(request.asked_bytes / request.round_bytes, (uint64_t) request.n_experts);
    if (rounds < (uint64_t) request.n_used) {
        // asked is rounded down and the cycle up: the two never read as equal
        const std::string asked = std::to_string(request.asked_bytes >> 20) + " MiB";
        budget.reason = (request.automatic ? "auto found room for " + asked + ", which" : asked + " asked") +
            " is below one token cycle (" + mib(budget.cycle_bytes) + ")";
        return budget;
    }
    // where every expert has a slot, nothing streams
    if (request.piece_bytes && rounds < (uint64_t) request.n_experts) {
        const uint64_t wanted = emc_product(EMC_STAGING, request.piece_bytes);
        const uint64_t beside = request.asked_bytes > wanted ? (request.asked_bytes - wanted) / request.round_bytes : 0;
        rounds = std::max(std::min(rounds, beside), (uint64_t) request.n_used);
        const uint64_t fits = (request.asked_bytes - rounds * request.round_bytes) / request.piece_bytes;
        budget.staging = fits < EMC_STAGING_LEAST ? 0 : (int) std::min<uint64_t>(fits, EMC_STAGING);
    }
    budget.slots           = (int) rounds;
    budget.delivered_bytes = rounds * request.round_bytes + (uint64_t) budget.staging * request.piece_bytes;
    budget.cycles          = (double) rounds / request.n_used;
    return budget;
}

uint64_t emc_budget_auto(uint64_t room_bytes, uint64_t dense_bytes, uint64_t cycle_bytes, uint64_t all_bytes, uint64_t staging_bytes) {
    const uint64_t taken  = emc_sum(emc_sum(dense_bytes, staging_bytes), std::max(room_bytes / 8, EMC_RESERVE_MIN));
    const uint64_t left   = room_bytes > taken ? room_bytes - taken : 0;
    const uint64_t cycles = cycle_bytes ? left / cycle_bytes : 0;
    return cycles ? std::min(cycles * cycle_bytes + staging_bytes, all_bytes) : 0;
}

bool emc_budget_fits(uint64_t room_bytes, uint64_t dense_bytes, uint64_t expert_bytes) {
    return room_bytes > dense_bytes && (double) (room_bytes - dense_bytes) >= EMC_FITS_SHARE * (double) expert_bytes;
}
