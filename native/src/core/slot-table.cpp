// SPDX-License-Identifier: MIT
#include "slot-table.h"

#include "check.h"

emc_slot_table::emc_slot_table(int n_experts, int n_slots, std::unique_ptr<emc_policy> policy_) :
    slots(n_slots), in_use(n_slots), slot_of(n_experts, EMC_NO_SLOT), candidates((size_t) n_slots + 1), policy(std::move(policy_)) {
    EMC_CHECK(n_slots > 0 && policy);
}

int emc_slot_table::available() const {
    int n = 0;
    for (emc_slot slot = 0; slot < in_use; ++slot) {
        n += slots[slot].state == emc_slot_state::EMPTY || evictable(slot);
    }
    return n;
}

int emc_slot_table::empty() const {
    int n = 0;
    for (emc_slot slot = 0; slot < in_use; ++slot) {
        n += slots[slot].state == emc_slot_state::EMPTY;
    }
    return n;
}

emc_slot emc_slot_table::begin_load(int expert, int * evicted, bool of_worth) {
    EMC_CHECK(slot_of[expert] == EMC_NO_SLOT);
    *evicted = -1;

    emc_slot slot = EMC_NO_SLOT;
    int n_candidates = 0;
    if (of_worth) {
        candidates[n_candidates++] = expert;  // of equals the first goes: this one
    }
    for (emc_slot s = 0; s < in_use && slot == EMC_NO_SLOT; ++s) {
        if (slots[s].state == emc_slot_state::EMPTY) {
            slot = s;
        } else if (evictable(s)) {
            candidates[n_candidates++] = slots[s].expert;
        }
    }
    if (slot == EMC_NO_SLOT) {
        if (n_candidates == 0) {
            return EMC_NO_SLOT;
        }
        const int32_t victim = policy->victim(candidates.data(), n_candidates);
        if (victim == expert) {
            return EMC_NO_SLOT;
        }
        *evicted = victim;
        slot = slot_of[victim];
        EMC_CHECK(slot != EMC_NO_SLOT && evictable(slot));
        slot_of[*evicted] = EMC_NO_SLOT;
    }

    slot_info & info = slots[slot];
    info.expert     = expert;
    info.pins       = 1;
    info.generation += 1;
    info.state      = emc_slot_state::LOADING;
    slot_of[expert] = slot;
    return slot;
}

void emc_slot_table::use(int n) {
    EMC_CHECK(n >= 1 && n <= n_slots());
    in_use = n;
}

int emc_slot_table::vacate(emc_slot slot) {
    slot_info & info = slots[slot];
    if (info.state == emc_slot_state::EMPTY) {
        return -1;
    }
    if (!evictable(slot)) {
        return EMC_BUSY;
    }
    const int expert = info.expert;
    slot_of[expert]  = EMC_NO_SLOT;
    info.expert      = -1;
    info.state       = emc_slot_state::EMPTY;
    return expert;
}

void emc_slot_table::pin(emc_slot slot) {
    EMC_CHECK(slots[slot].state == emc_slot_state::LOADING || slots[slot].state == emc_slot_state::READY);
    slots[slot].pins += 1;
}

void emc_slot_table::unpin(emc_slot slot) {
    slot_info & info = slots[slot];
    EMC_CHECK(info.pins > 0);
    info.pins -= 1;
    if (info.pins == 0 && info.state == emc_slot_state::FAILED) {
        info.state = emc_slot_state::EMPTY;
    }
}

void emc_slot_table::complete(emc_slot slot, uint32_t generation) {
    slot_info & info = slots[slot];
    if (info.generation != generation || info.state != emc_slot_state::LOADING) {
        n_stale += 1;
        return;
    }
    info.state = emc_slot_state::READY;
}

void emc_slot_table::fail(emc_slot slot, uint32_t generation) {
    slot_info & info = slots[slot];
    if (info.generation != generation || info.state != emc_slot_state::LOADING) {
        n_stale += 1;
        return;
    }
    slot_of[info.expert] = EMC_NO_SLOT;
    info.expert = -1;
    info.state  = info.pins > 0 ? emc_slot_state::FAILED : emc_slot_state::EMPTY;
}

void emc_slot_table::check() const {
    int indexed = 0;
    for (size_t e = 0; e < slot_of.size(); ++e) {
        if (slot_of[e] != EMC_NO_SLOT) {
            EMC_CHECK(slots[slot_of[e]].expert == (int) e);
            indexed += 1;
        }
    }
    int held = 0;
    for (const slot_info & info : slots) {
        const bool holds = info.state == emc_slot_state::LOADING || info.state == emc_slot_state::READY;
        EMC_CHECK(holds == (info.expert >= 0));
        EMC_CHECK(info.pins >= 0);
        EMC_CHECK(info.state != emc_slot_state::FAILED || info.pins > 0);
        EMC_CHECK(info.state != emc_slot_state::EMPTY  || info.pins == 0);
        held += holds;
    }
    EMC_CHECK(indexed == held);
}
