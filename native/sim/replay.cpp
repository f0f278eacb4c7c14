// SPDX-License-Identifier: MIT
#include "replay.h"

#include "../src/core/slot-table.h"

#include <ctime>
#include <set>
#include <utility>

static void count(emc_replay_result & result, const emc_event & event, uint64_t hits) {
    result.events                += 1;
    result.lookups[event.phase]  += (uint64_t) event.n;
    result.hits[event.phase]     += hits;
}

emc_replay_result emc_replay(const emc_trace & trace, const std::string & policy, int slots, emc_pool pool) {
    const bool one      = pool == emc_pool::ONE;
    const int  n_tables = one ? 1 : trace.n_layers;
    const int  n_ids    = one ? trace.n_layers * trace.n_experts : trace.n_experts;
    std::vector<emc_slot_table> tables;
    for (int i = 0; i < n_tables; ++i) {
        tables.emplace_back(n_ids, one ? slots * trace.n_layers : slots, emc_policy_make(policy, n_ids));
    }

    emc_replay_result    result;
    std::vector<int32_t> ids;
    emc_tick             tick  = 0;
    const clock_t        begin = clock();
    for (const emc_event & event : trace.events) {
        if (event.n > slots && !event.streams && !event.heard_only) {
            continue;
        }
        emc_slot_table & table = tables[one ? 0 : event.layer];
        const int        base  = one ? event.layer * trace.n_experts : 0;
        ids.clear();
        for (int i = 0; i < event.n; ++i) {
            ids.push_back(base + trace.experts[event.first + i]);
        }

        if (!event.heard) {
            table.event(ids.data(), event.n, ++tick);
        }
        if (event.heard_only) {
            result.outcomes.insert(result.outcomes.end(), ids.size(), EMC_HIT);
            continue;
        }
        uint64_t hits = 0;
        for (const int32_t id : ids) {
            if (table.find(id) != EMC_NO_SLOT) {
                table.pin(table.find(id));
                hits += 1;
            }
        }
        for (const int32_t id : ids) {
            int32_t outcome = EMC_HIT;
            if (table.find(id) == EMC_NO_SLOT) {
                int evicted = -1;
                const emc_slot slot = table.begin_load(id, &evicted, event.streams);
                if (slot == EMC_NO_SLOT) {
                    outcome = EMC_PASSED;
                } else {
                    table.complete(slot, table.generation(slot));
                    outcome = evicted < 0 ? EMC_EMPTY_SLOT : evicted;
                }
            }
            result.outcomes.push_back(outcome);
        }
        for (const int32_t id : ids) {
            if (table.find(id) != EMC_NO_SLOT) {
                table.unpin(table.find(id));
            }
        }
        count(result, event, hits);
    }
    result.ns = (uint64_t) ((double) (clock() - begin) * (1e9 / CLOCKS_PER_SEC));
    return result;
}

emc_replay_result emc_replay_belady(const emc_trace & trace, int slots) {
    const size_t never = trace.events.size();
    const auto   id_of = [&](const emc_event & event, int i) {
        return event.layer * trace.n_experts + trace.experts[event.first + i];
    };
    const auto   left_out = [slots](const emc_event & event) { return event.n > slots || event.streams || event.heard_only; };

    // next[lookup]: the event that uses the same expert again
    std::vector<size_t> next(trace.experts.size(), never);
    std::vector<size_t> seen((size_t) trace.n_layers * trace.n_experts, never);
    for (size_t e = trace.events.size(); e-- > 0;) {
        const emc_event & event = trace.events[e];
        for (int i = 0; !left_out(event) && i < event.n; ++i) {
            next[event.first + i] = seen[id_of(event, i)];
            seen[id_of(event, i)] = e;
        }
    }

    emc_replay_result result;
    const size_t capacity = (size_t) slots * trace.n_layers;
    std::set<std::pair<size_t, int>> resident;        // (next use, id): the last one goes
    std::vector<size_t> due(seen.size(), never);      // by id, its key in resident
    std::vector<bool>   is_resident(seen.size(), false);
    for (const emc_event & event : trace.events) {
        if (left_out(event)) {
            continue;
        }
        // take the event's experts out, make room among the others, then put them in
        uint64_t hits = 0;
        for (int i = 0; i < event.n; ++i) {
            const int id = id_of(event, i);
            if (is_resident[id]) {
                resident.erase({ due[id], id });
                hits += 1;
            }
        }
        while (resident.size() + event.n > capacity) {
            is_resident[std::prev(resident.end())->second] = false;
            resident.erase(std::prev(resident.end()));
        }
        for (int i = 0; i < event.n; ++i) {
            const int id = id_of(event, i);
            due[id] = next[event.first + i];
            resident.insert({ due[id], id });
            is_resident[id] = true;
        }
        count(result, event, hits);
    }
    return result;
}

std::string emc_replay_difference(const emc_trace & trace) {
    const std::vector<int32_t> outcomes = emc_replay(trace, trace.policy, trace.slots, emc_pool::LAYER).outcomes;
    const auto words = [](int32_t outcome) {
        return outcome == EMC_HIT ? "a hit" : outcome == EMC_EMPTY_SLOT ? "a load into an empty slot" : outcome == EMC_PASSED ? "no load" :
            "a load that evicted " + std::to_string(outcome);
    };
    for (size_t e = 0; e < trace.events.size(); ++e) {
        const emc_event & event = trace.events[e];
        if (event.n > trace.slots && !event.streams && !event.heard_only) {
            return "event " + std::to_string(e + 1) + " has more experts than a layer has slots";
        }
        for (size_t i = event.first; i < event.first + event.n; ++i) {
            if (outcomes[i] != trace.outcomes[i]) {
                return "event " + std::to_string(e + 1) + ", layer " + std::to_string(event.layer) + ", expert " +
                    std::to_string(trace.experts[i]) + ": recorded " + words(trace.outcomes[i]) + ", replayed " + words(outcomes[i]);
            }
        }
    }
    return "";
}
