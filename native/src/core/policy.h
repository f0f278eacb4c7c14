// SPDX-License-Identifier: MIT
// The eviction policy port: slot ids and logical time in, a victim out.
//
// One instance serves one layer. An implementation keeps its own arrays, takes no lock, reads no clock and
// allocates nothing after construction, so that the engine and a replay of its trace decide alike.
#pragma once

#include "types.h"

#include <memory>
#include <string>

class emc_policy {
public:
    virtual ~emc_policy() = default;

    // The slot has begun to load an expert. REQUIRES: it is not inserted.
    virtual void on_insert(emc_slot slot, emc_tick now) = 0;

    // A layer event uses the slot again. REQUIRES: it is inserted.
    virtual void on_hit(emc_slot slot, emc_tick now) = 0;

    // The slot no longer holds its expert. REQUIRES: it is inserted.
    virtual void on_evict(emc_slot slot) = 0;

    // The slot to give up among those with evictable[slot] != 0 (all of them inserted), or EMC_NO_SLOT if
    // there is none: no victim is an answer, not an error.
    virtual emc_slot victim(const uint8_t * evictable) const = 0;

    virtual void reset() = 0;

    virtual const char * name() const = 0;
};

// nullptr: there is no policy of this name.
std::unique_ptr<emc_policy> emc_policy_make(const std::string & name, int n_slots);

// The names that emc_policy_make accepts, for messages.
const char * emc_policy_names();

// One constructor each; policies.cpp maps names to them.
std::unique_ptr<emc_policy> emc_policy_lru(int n_slots);
