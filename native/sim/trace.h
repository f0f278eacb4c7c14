// SPDX-License-Identifier: MIT
// A recorded run: what the router chose, event by event, and for our own traces what the cache decided.
#pragma once

#include "../src/core/types.h"

#include <string>
#include <vector>

// What became of one lookup; 0 and up: a load that evicted this expert.
constexpr int32_t EMC_HIT        = -1;
constexpr int32_t EMC_EMPTY_SLOT = -2;
constexpr int32_t EMC_PASSED     = -3;  // of a stream: no load, what could have gone was worth more

struct emc_event {
    int32_t   layer;
    emc_phase phase;
    size_t    first;  // its lookups are first .. first + n - 1
    int32_t   n;
    bool      heard_only = false;  // by the policy, ahead of the batch that it is a part of: nothing is looked up
    bool      heard      = false;  // such events came ahead of it
    bool      streams    = false;  // it loads only what is worth more than what would go
};

struct emc_trace {
    std::string            format;
    int                    n_layers  = 0;
    int                    n_experts = 0;  // of the layer that has most
    std::vector<emc_event> events;
    std::vector<int32_t>   experts;        // by lookup

    // of our own traces only
    int                    slots = 0;      // in each layer; 0 = nothing was recorded
    std::string            policy;
    std::vector<int32_t>   outcomes;       // by lookup
    bool                   complete = true;  // false: the recorder says that it dropped events

    // Experts that a token uses in a layer: the most frequent size of a decode event, of any event if there is none.
    int n_used() const;
};
