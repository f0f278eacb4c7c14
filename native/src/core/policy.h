// SPDX-License-Identifier: MIT
// The eviction policy port: expert ids and logical time in, a victim out.
//
// One instance serves one layer. It hears every choice of the router, whether or not the experts were resident, so
// what it knows of an expert outlives the expert's stay in a slot. It knows nothing of slots, takes no lock, reads
// no clock and allocates nothing after construction, and it computes in integers: the engine and a replay of its
// trace decide alike, on any machine.
#pragma once

#include "types.h"

#include <memory>
#include <string>

class emc_policy {
public:
    virtual ~emc_policy() = default;

    // The router has chosen these experts: called once for each layer event, before any victim is asked for on its
    // behalf. REQUIRES: ids differ and are below n_experts; now is larger than at the last event.
    virtual void on_event(const int32_t * experts, int n, emc_tick now) = 0;

    // The expert to give up, one of the candidates. Of equals the first goes. REQUIRES: n > 0.
    virtual int32_t victim(const int32_t * candidates, int n) = 0;

    virtual const char * name() const = 0;
};

// nullptr: there is no policy of this name.
std::unique_ptr<emc_policy> emc_policy_make(const std::string & name, int n_experts);

// The names that emc_policy_make accepts, for messages.
const char * emc_policy_names();

// Serves where none is asked for.
constexpr const char * EMC_DEFAULT_POLICY = "echo";

// One constructor each; policies.cpp maps names to them.
std::unique_ptr<emc_policy> emc_policy_echo(int n_experts);
std::unique_ptr<emc_policy> emc_policy_lru(int n_experts);
