// SPDX-License-Identifier: MIT
// Which expert of one layer is in which slot. Pure bookkeeping: no bytes, no thread, no lock.
//
// States of a slot and what moves it (the caller holds the engine's mutex throughout):
//
//   from            to        by          condition
//   EMPTY           LOADING   begin_load  an expert that is in no slot; the generation advances; pinned once
//   READY, 0 pins   LOADING   begin_load  no slot is EMPTY and the policy names its expert, which is evicted
//   LOADING         READY     complete    same generation
//   LOADING         FAILED    fail        same generation; the expert leaves the index, so the next event asks again
//   FAILED          EMPTY     unpin, fail no pin is left
//   READY, 0 pins   EMPTY     vacate
//   LOADING, READY  (same)    pin, unpin
//
// LOADING slots and pinned slots are never evicted. The reader owns the bytes of a LOADING slot; those who hold
// a pin may read a piece once it has landed; nobody else touches them. A caller reports complete or fail only
// when every read into the slot has ended, so no late write can reach the slot's next expert.
//
// A completion that names an older generation is ignored and counted (stale).
//
// Costs: find is an array access; begin_load scans the layer's slots (tens), before reads that take far longer.
#pragma once

#include "policy.h"
#include "types.h"

#include <memory>
#include <vector>

enum class emc_slot_state : uint8_t { EMPTY, LOADING, READY, FAILED };

class emc_slot_table {
public:
    // REQUIRES: n_slots > 0, policy was made for n_experts.
    emc_slot_table(int n_experts, int n_slots, std::unique_ptr<emc_policy> policy);

    // The slot that holds or is loading the expert, or EMC_NO_SLOT.
    emc_slot find(int expert) const { return slot_of[expert]; }

    // How many begin_load calls in a row would succeed now, and how many of them would evict nothing.
    int available() const;
    int empty() const;

    // The router has chosen these experts: once for each layer event, before its begin_load calls. Ids differ.
    void event(const int32_t * experts, int n, emc_tick now) { policy->on_event(experts, n, now); }

    // Give the expert a slot, pinned once. *evicted is the expert that had to go, or -1.
    // EMC_NO_SLOT if every slot is pinned or loading, or if the expert has to be of worth and the policy would sooner give
    // it up again than any of those that could go. REQUIRES: find(expert) == EMC_NO_SLOT.
    emc_slot begin_load(int expert, int * evicted, bool of_worth = false);

    void pin(emc_slot slot);
    void unpin(emc_slot slot);

    // Slots from n on take no new expert. REQUIRES: 1 <= n <= n_slots().
    void use(int n);

    // If nobody uses the slot and nothing is on its way there, its expert (returned, or -1) leaves it; else EMC_BUSY.
    static constexpr int EMC_BUSY = -2;
    int vacate(emc_slot slot);

    void complete(emc_slot slot, uint32_t generation);
    void fail(emc_slot slot, uint32_t generation);

    int            n_slots()                   const { return (int) slots.size(); }
    int            n_in_use()                  const { return in_use; }
    int            expert(emc_slot slot)       const { return slots[slot].expert; }
    int            pins(emc_slot slot)         const { return slots[slot].pins; }
    uint32_t       generation(emc_slot slot)   const { return slots[slot].generation; }
    emc_slot_state state(emc_slot slot)        const { return slots[slot].state; }
    uint64_t       stale()                     const { return n_stale; }

    // Recomputes every relation between the arrays and aborts on a contradiction. For tests and shutdown.
    void check() const;

private:
    struct slot_info {
        int32_t        expert     = -1;
        int32_t        pins       = 0;
        uint32_t       generation = 0;
        emc_slot_state state      = emc_slot_state::EMPTY;
    };

    bool evictable(emc_slot slot) const {
        return slots[slot].state == emc_slot_state::READY && slots[slot].pins == 0;
    }

    std::vector<slot_info>      slots;
    int                         in_use;
    std::vector<emc_slot>       slot_of;     // by expert
    std::vector<int32_t>        candidates;  // [slots + 1], scratch for the policy, so that begin_load allocates nothing
    std::unique_ptr<emc_policy> policy;
    uint64_t                    n_stale = 0;
};
