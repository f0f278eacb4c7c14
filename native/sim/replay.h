// SPDX-License-Identifier: MIT
// Replays a trace through the slot table and the policy that serve in the engine, and through the optimum.
//
// An event is atomic, as in the engine: all its experts are looked up and held before the first is loaded. An event
// of more experts than a layer has slots is left out, since the engine computes it from the mapping or streams it.
#pragma once

#include "trace.h"

#include <string>
#include <vector>

enum class emc_pool {
    LAYER,  // each layer has its own slots, as in the engine
    ONE,    // all layers share n_layers * slots
};

struct emc_replay_result {
    uint64_t lookups[2] = {0, 0};  // by emc_phase
    uint64_t hits[2]    = {0, 0};
    uint64_t events     = 0;
    uint64_t ns         = 0;       // processor time of tables and policy, all events together
    std::vector<int32_t> outcomes; // by lookup of the events that were not left out

    double hit_rate() const { return lookups[EMC_DECODE] ? (double) hits[EMC_DECODE] / (double) lookups[EMC_DECODE] : 0; }
};

// slots: of one layer. REQUIRES: the policy exists, slots > 0.
emc_replay_result emc_replay(const emc_trace & trace, const std::string & policy, int slots, emc_pool pool);

// The most hits that any choice of victims gives with n_layers * slots in one pool: the expert whose next use is
// farthest goes (Belady). It knows the future; nothing else may.
emc_replay_result emc_replay_belady(const emc_trace & trace, int slots);

// "" if a replay decides everything as recorded, else the first difference in one line. REQUIRES: trace.slots > 0.
std::string emc_replay_difference(const emc_trace & trace);
