// SPDX-License-Identifier: MIT
// The simulator decides as the cache did, counts as a plain reference does, and nothing beats the optimum.
#include "../sim/replay.h"
#include "../sim/trace-reader.h"
#include "../src/core/policy.h"
#include "../src/engine/cache.h"
#include "fake-reader.h"

#include <algorithm>
#include <fstream>
#include <list>
#include <sstream>
#include <unistd.h>

// A trace with some locality: each layer walks through phrases of its own.
static emc_trace random_trace(test_random & random) {
    emc_trace trace;
    trace.format    = "random";
    trace.n_layers  = (int) random.in(1, 4);
    trace.n_experts = (int) random.in(2, 40);
    const int n_used    = (int) random.in(1, (uint64_t) std::min(trace.n_experts, 8));
    const int n_phrases = (int) random.in(1, 12);
    std::vector<std::vector<int32_t>> phrases((size_t) trace.n_layers * n_phrases);
    const auto choose = [&] {
        std::vector<int32_t> ids(trace.n_experts);
        for (int e = 0; e < trace.n_experts; ++e) {
            ids[e] = e;
        }
        std::shuffle(ids.begin(), ids.end(), random.engine);
        ids.resize(random.in(0, 9) == 0 ? random.in(1, (uint64_t) trace.n_experts) : (uint64_t) n_used);
        return ids;
    };
    for (auto & phrase : phrases) {
        phrase = choose();
    }
    for (int token = 0; token < 150; ++token) {
        for (int layer = 0; layer < trace.n_layers; ++layer) {
            const bool noise = random.in(0, 2) == 0;
            const auto ids = noise ? choose() : phrases[(size_t) layer * n_phrases + random.in(0, (uint64_t) n_phrases - 1)];
            trace.events.push_back({ layer, random.in(0, 9) ? EMC_DECODE : EMC_PREFILL, trace.experts.size(), (int) ids.size() });
            trace.experts.insert(trace.experts.end(), ids.begin(), ids.end());
        }
    }
    return trace;
}

// LRU as one would write it down: a list of (layer, expert), most recent at the end.
static uint64_t plain_lru_hits(const emc_trace & trace, int slots, emc_pool pool, emc_phase phase) {
    uint64_t hits = 0;
    std::vector<std::list<std::pair<int, int32_t>>> lists(pool == emc_pool::ONE ? 1 : trace.n_layers);
    const size_t capacity = (size_t) slots * (pool == emc_pool::ONE ? trace.n_layers : 1);
    for (const emc_event & event : trace.events) {
        if (event.n > slots) {
            continue;
        }
        auto & list = lists[pool == emc_pool::ONE ? 0 : event.layer];
        for (int i = 0; i < event.n; ++i) {
            const std::pair<int, int32_t> key(event.layer, trace.experts[event.first + i]);
            hits += event.phase == phase && std::find(list.begin(), list.end(), key) != list.end();
        }
        for (int i = 0; i < event.n; ++i) {
            list.remove({ event.layer, trace.experts[event.first + i] });
        }
        // room is made for the whole event at once
        while (list.size() + event.n > capacity) {
            list.pop_front();
        }
        for (int i = 0; i < event.n; ++i) {
            list.push_back({ event.layer, trace.experts[event.first + i] });
        }
    }
    return hits;
}

// The order of the experts of one event is not defined: LRU breaks that tie by slot and the reference by place in the
// list, so compare on traces in which it cannot matter.
static void lru_is_lru(test_random & random) {
    emc_trace trace = random_trace(random);
    for (emc_event & event : trace.events) {
        event.n = 1;
    }
    const int slots = (int) random.in(1, (uint64_t) trace.n_experts);
    for (const emc_pool pool : { emc_pool::LAYER, emc_pool::ONE }) {
        const emc_replay_result result = emc_replay(trace, "lru", slots, pool);
        for (const emc_phase phase : { EMC_DECODE, EMC_PREFILL }) {
            CHECK_EQ(result.hits[phase], plain_lru_hits(trace, slots, pool, phase));
        }
    }
}

static void nothing_beats_belady(test_random & random) {
    const emc_trace trace = random_trace(random);
    const int slots = (int) random.in(1, (uint64_t) trace.n_experts);
    const auto total = [](const emc_replay_result & r) { return r.hits[0] + r.hits[1]; };
    const emc_replay_result best = emc_replay_belady(trace, slots);
    std::istringstream names(emc_policy_names());
    for (std::string name; names >> name;) {
        for (const emc_pool pool : { emc_pool::LAYER, emc_pool::ONE }) {
            const emc_replay_result result = emc_replay(trace, name, slots, pool);
            CHECK(total(result) <= total(best));
            CHECK_EQ(result.events, best.events);
            for (int p = 0; p < 2; ++p) {
                CHECK_EQ(result.lookups[p], best.lookups[p]);
            }
            CHECK(result.outcomes == emc_replay(trace, name, slots, pool).outcomes);
        }
    }
}

// By hand: layers=1, 2 slots. 0 1 | 2 | 0 | 1: loading 2 must evict 0 or 1; keeping 0 gives the one possible hit.
static void belady_by_hand() {
    emc_trace trace;
    trace.n_layers  = 1;
    trace.n_experts = 3;
    trace.experts   = { 0, 1, 2, 0, 1 };
    trace.events    = { { 0, EMC_DECODE, 0, 2 }, { 0, EMC_DECODE, 2, 1 }, { 0, EMC_DECODE, 3, 1 }, { 0, EMC_DECODE, 4, 1 } };
    CHECK_EQ(emc_replay_belady(trace, 2).hits[EMC_DECODE], 1u);
    CHECK_EQ(emc_replay_belady(trace, 3).hits[EMC_DECODE], 2u);
    CHECK_EQ(emc_replay_belady(trace, 1).lookups[EMC_DECODE], 3u);  // the event of two is left out
    CHECK_EQ(emc_replay(trace, "lru", 2, emc_pool::LAYER).hits[EMC_DECODE], 0u);
}

// What the cache records, the simulator repeats: hits, misses and victims, for each policy, of prompts too: those that stream
// and those whose last rows are known.
static void recorded_run_is_repeated(test_random & random, const std::string & policy, int n_staging) {
    const int n_experts = 16;
    const int n_slots   = 6;
    std::vector<emc_layer> layers(2);
    for (emc_layer & layer : layers) {
        layer.n_experts = n_experts;
        layer.kinds = { { 0, 0, 5000 }, { 0, 1 << 20, 3000 } };
    }
    const std::string path = "trace-" + std::to_string(getpid());
    std::string error;
    CHECK(!emc_trace_writer::make("/no/such/dir/t", "h", error) && error.find("/no/such/dir/t") != std::string::npos);
    fake_reader_state io;
    emc_stats stats;
    {
        emc_cache_options options;
        options.n_slots   = n_slots;
        options.n_staging = n_staging;
        options.policy    = policy;
        auto writer = emc_trace_writer::make(path, "edge-moe-trace 1 layers=2 experts=16 slots=6 policy=" + policy, error);
        CHECK(writer);
        auto cache = emc_cache::make(layers, options, std::make_unique<fake_reader>(io), std::move(writer), error);
        io.in_submit = [&io] { io.finish_all(); };
        for (int token = 0; token < 700; ++token) {
            const int64_t rows = random.in(0, 9) ? 1 : 8;
            for (int layer = 0; layer < 2; ++layer) {
                std::vector<int32_t> experts;
                for (int e = 0; e < n_experts; ++e) {
                    if (random.in(0, 7) == 0 && experts.size() < 8) {
                        experts.push_back(e);
                    }
                }
                std::vector<int32_t> last_rows;  // two of them
                for (size_t i = 0; rows > 1 && i + 1 < experts.size(); ++i) {
                    last_rows.insert(last_rows.end(), { experts[i], experts[i + 1] });
                }
                const bool known = last_rows.size() >= 4 && random.in(0, 3) > 0;
                for (int kind = 0; kind < 2; ++kind) {
                    emc_call * call = cache->acquire(layer, kind, experts.data(), (int) experts.size(), rows, "batch", 1,
                        known && kind == 0 ? emc_tail{ last_rows.data(), 2, 2 } : emc_tail());
                    CHECK_EQ(call != nullptr, !experts.empty() && (n_staging > 0 || (int) experts.size() <= n_slots));
                    for (int i = 0; call && i < call->n; ++i) {
                        cache->next(call, i);
                    }
                    if (call) {
                        cache->release(call);
                    }
                }
            }
        }
        stats = cache->stats();
        cache->check();
    }

    std::ifstream file(path, std::ios::binary);
    emc_trace trace;
    CHECK(emc_trace_read(file, path, emc_prefill::TOKENS, trace, error));
    CHECK(trace.complete && trace.slots == n_slots && trace.policy == policy);
    CHECK_EQ(emc_replay_difference(trace), std::string());
    const emc_replay_result result = emc_replay(trace, policy, n_slots, emc_pool::LAYER);
    CHECK_EQ(result.hits[EMC_DECODE], stats.hits[EMC_DECODE]);
    if (n_staging == 0) {  // what streams by is no lookup of a replay
        CHECK_EQ(result.hits[EMC_PREFILL], stats.hits[EMC_PREFILL]);
        for (int p = 0; p < 2; ++p) {
            CHECK_EQ(result.lookups[p], stats.lookups[p]);
        }
    } else {
        const auto with = [&](int32_t outcome) { return std::count(trace.outcomes.begin(), trace.outcomes.end(), outcome); };
        CHECK(std::any_of(trace.events.begin(), trace.events.end(), [](const emc_event & e) { return e.streams && e.phase == EMC_PREFILL; }));
        CHECK(policy == "lru" || with(EMC_PASSED) > 0);  // to lru, what has just been heard of is worth most
    }
    CHECK(stats.evictions > 500);

    // another victim than the recorded one does not pass unseen
    for (size_t i = trace.outcomes.size() / 2; i < trace.outcomes.size(); ++i) {
        if (trace.outcomes[i] >= 0) {
            trace.outcomes[i] = (trace.outcomes[i] + 1) % n_experts;
            break;
        }
    }
    CHECK(emc_replay_difference(trace).find("recorded a load that evicted") != std::string::npos);
    unlink(path.c_str());
}

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));
    belady_by_hand();
    for (int round = 0; round < 60; ++round) {
        lru_is_lru(random);
        nothing_beats_belady(random);
    }
    std::istringstream names(emc_policy_names());
    for (std::string name; names >> name;) {
        for (const int n_staging : { 0, 4 }) {
            recorded_run_is_repeated(random, name, n_staging);
        }
    }
    return 0;
}
