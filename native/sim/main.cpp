// SPDX-License-Identifier: MIT
// edge-moe-sim: replay a trace at any capacity, beside LRU and the optimum.
#include "../src/core/policy.h"
#include "replay.h"
#include "trace-reader.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

static const char USAGE[] =
    "usage: edge-moe-sim TRACE [options]\n"
    "\n"
    "Replays the router's choices in TRACE through the slot table and the eviction policies of the cache, and prints\n"
    "the share of lookups in decode that were hits. TRACE is what EDGE_MOE_TRACE records, or a CSV or JSONL trace\n"
    "(native/sim/trace-reader.h has the formats).\n"
    "\n"
    "  --policy NAME[,NAME]   which policies (default: all)\n"
    "  --cycles N[,N]         capacities in token cycles (default: 1,1.5,2,3,4); those that exceed a layer are left out\n"
    "  --slots N[,N]          capacities in slots of each layer, instead of cycles\n"
    "  --prefill HOW          of a CSV trace: tokens (default: each is an event), batch, or skip\n"
    "  --decode-only          the same as --prefill skip\n"
    "  --verify               check that a replay of our own trace decides all as recorded; print nothing else\n"
    "  --json                 one JSON object in place of the table\n"
    "  --help\n"
    "\n"
    "Columns: lru* and belady have the slots of all layers in one pool: the control, and the most that any choice of\n"
    "victims can reach. The other columns have slots in each layer, as the cache has them; gap is the part of the way\n"
    "from lru* to belady, and ns the processor time of table and policy for an event.\n";

namespace {

struct options {
    std::string              trace;
    std::vector<std::string> policies;
    std::vector<double>      cycles = {1, 1.5, 2, 3, 4};
    std::vector<int>         slots;
    emc_prefill              prefill = emc_prefill::TOKENS;
    bool                     verify  = false;
    bool                     json    = false;
};

struct column {
    std::string policy;
    double      hit_rate;
    double      gap;
    double      ns;
};

struct row {
    int                 slots;
    double              cycles;
    uint64_t            lookups;
    double              lru;
    double              belady;
    std::vector<column> policies;
};

[[noreturn]] void stop(const std::string & message) {
    fprintf(stderr, "edge-moe-sim: %s\n", message.c_str());
    exit(2);
}

// "" is one empty part, which nobody accepts
std::vector<std::string> split(const std::string & text) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t comma = text.find(','); comma != std::string::npos; comma = text.find(',', begin)) {
        parts.push_back(text.substr(begin, comma - begin));
        begin = comma + 1;
    }
    parts.push_back(text.substr(begin));
    return parts;
}

double number(const std::string & option, const std::string & text, double low, double high) {
    char * end = nullptr;
    const double value = strtod(text.c_str(), &end);
    if (text.empty() || *end || !(value >= low && value <= high)) {
        std::ostringstream range;
        range << "numbers from " << low << " to " << high << ", separated by commas";
        stop(option + " is \"" + text + "\": it accepts " + range.str());
    }
    return value;
}

options parse(int argc, char ** argv) {
    options o;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto value = [&] {
            if (i + 1 == argc) {
                stop(word + " needs a value; --help lists them");
            }
            return std::string(argv[++i]);
        };
        if (word == "--help") {
            fputs(USAGE, stdout);
            exit(0);
        } else if (word == "--policy") {
            o.policies = split(value());
        } else if (word == "--cycles") {
            o.cycles.clear();
            for (const std::string & text : split(value())) {
                o.cycles.push_back(number(word, text, 0.01, EMC_TRACE_EXPERTS));
            }
        } else if (word == "--slots") {
            for (const std::string & text : split(value())) {
                o.slots.push_back((int) number(word, text, 1, EMC_TRACE_EXPERTS));
            }
        } else if (word == "--prefill") {
            const std::string how = value();
            if (how != "tokens" && how != "batch" && how != "skip") {
                stop("--prefill is \"" + how + "\": it accepts tokens, batch or skip");
            }
            o.prefill = how == "tokens" ? emc_prefill::TOKENS : how == "batch" ? emc_prefill::BATCH : emc_prefill::SKIP;
        } else if (word == "--decode-only") {
            o.prefill = emc_prefill::SKIP;
        } else if (word == "--verify") {
            o.verify = true;
        } else if (word == "--json") {
            o.json = true;
        } else if (word.size() > 1 && word[0] == '-') {
            stop("no option \"" + word + "\"; --help lists them");
        } else if (o.trace.empty()) {
            o.trace = word;
        } else {
            stop("one trace at a time: \"" + o.trace + "\" and \"" + word + "\"");
        }
    }
    if (o.trace.empty()) {
        stop("no trace given; --help tells what is accepted");
    }
    if (o.policies.empty()) {
        std::istringstream names(emc_policy_names());
        for (std::string name; names >> name;) {
            o.policies.push_back(name);
        }
    }
    for (const std::string & name : o.policies) {
        if (!emc_policy_make(name, 1)) {
            stop("--policy is \"" + name + "\": it accepts " + emc_policy_names());
        }
    }
    return o;
}

row measure(const emc_trace & trace, const std::vector<std::string> & policies, int slots) {
    const emc_replay_result lru    = emc_replay(trace, "lru", slots, emc_pool::ONE);
    const emc_replay_result belady = emc_replay_belady(trace, slots);
    row r { slots, (double) slots / trace.n_used(), lru.lookups[EMC_DECODE], lru.hit_rate(), belady.hit_rate(), {} };
    for (const std::string & name : policies) {
        const emc_replay_result result = emc_replay(trace, name, slots, emc_pool::LAYER);
        const double way = r.belady - r.lru;
        r.policies.push_back({ name, result.hit_rate(), way > 0 ? (result.hit_rate() - r.lru) / way : 0,
            result.events ? (double) result.ns / (double) result.events : 0 });
    }
    return r;
}

void print_table(const emc_trace & trace, const std::vector<row> & rows) {
    printf("%s, %d layers x %d experts, %d used, %zu events\n", trace.format.c_str(), trace.n_layers, trace.n_experts,
        trace.n_used(), trace.events.size());
    printf("%7s %6s %8s %8s", "cycles", "slots", "lru*", "belady");
    for (const column & c : rows[0].policies) {
        printf(" %8s %6s %6s", c.policy.c_str(), "gap", "ns");
    }
    printf("\n");
    for (const row & r : rows) {
        printf("%7.2f %6d %7.2f%% %7.2f%%", r.cycles, r.slots, 100 * r.lru, 100 * r.belady);
        for (const column & c : r.policies) {
            printf(" %7.2f%% %6.3f %6.0f", 100 * c.hit_rate, c.gap, c.ns);
        }
        printf("\n");
    }
}

void print_json(const emc_trace & trace, const std::vector<row> & rows) {
    printf("{\"default_policy\": \"%s\", \"format\": \"%s\", \"layers\": %d, \"experts\": %d, \"used\": %d, \"events\": %zu, \"capacities\": [",
        EMC_DEFAULT_POLICY, trace.format.c_str(), trace.n_layers, trace.n_experts, trace.n_used(), trace.events.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        const row & r = rows[i];
        printf("%s{\"cycles\": %.4g, \"slots\": %d, \"decode_lookups\": %llu, \"lru_one_pool\": %.6f, \"belady_one_pool\": %.6f, "
            "\"policies\": {", i ? ", " : "", r.cycles, r.slots, (unsigned long long) r.lookups, r.lru, r.belady);
        for (size_t k = 0; k < r.policies.size(); ++k) {
            const column & c = r.policies[k];
            printf("%s\"%s\": {\"hit_rate\": %.6f, \"gap\": %.6f, \"ns_per_event\": %.0f}", k ? ", " : "", c.policy.c_str(),
                c.hit_rate, c.gap, c.ns);
        }
        printf("}}");
    }
    printf("]}\n");
}

int verify(const emc_trace & trace, const std::string & name) {
    if (trace.slots == 0) {
        stop("--verify needs a trace of EDGE_MOE_TRACE: a " + trace.format + " trace has no decisions");
    }
    if (!trace.complete) {
        stop(name + " is not complete: its recorder dropped events, so a replay cannot follow");
    }
    if (!emc_policy_make(trace.policy, 1)) {
        stop(name + " was recorded with the policy \"" + trace.policy + "\": there are " + emc_policy_names());
    }
    const std::string difference = emc_replay_difference(trace);
    if (!difference.empty()) {
        fprintf(stderr, "edge-moe-sim: %s: %s\n", name.c_str(), difference.c_str());
        return 1;
    }
    printf("%zu events, %zu lookups: all decided as recorded (%s, %d slots)\n", trace.events.size(), trace.experts.size(),
        trace.policy.c_str(), trace.slots);
    return 0;
}

} // namespace

int main(int argc, char ** argv) {
    options o = parse(argc, argv);
    std::ifstream file(o.trace, std::ios::binary);
    if (!file) {
        stop("cannot read " + o.trace + ": " + strerror(errno));
    }
    emc_trace   trace;
    std::string error;
    if (!emc_trace_read(file, o.trace, o.verify ? emc_prefill::TOKENS : o.prefill, trace, error)) {
        stop(error);
    }
    if (o.verify) {
        return verify(trace, o.trace);
    }
    if (o.slots.empty()) {
        for (const double cycles : o.cycles) {
            const int slots = (int) (cycles * trace.n_used() + 1e-9);
            if (slots >= 1 && slots <= trace.n_experts) {
                o.slots.push_back(slots);
            }
        }
        if (o.slots.empty()) {
            stop("--cycles gives no capacity from 1 to " + std::to_string(trace.n_experts) + " slots in each layer of " + o.trace +
                ": a token cycle is " + std::to_string(trace.n_used()));
        }
    }
    std::vector<row> rows;
    for (const int slots : o.slots) {
        if (slots > trace.n_experts) {
            stop(std::to_string(slots) + " slots in each layer: " + o.trace + " takes 1 to " + std::to_string(trace.n_experts));
        }
        rows.push_back(measure(trace, o.policies, slots));
    }
    if (o.json) {
        print_json(trace, rows);
    } else {
        print_table(trace, rows);
    }
    return 0;
}
