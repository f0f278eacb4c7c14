// SPDX-License-Identifier: MIT
// What the trace reader makes of good, bad and hostile files. --seconds N fuzzes for that long (default 5).
#include "../sim/replay.h"
#include "../sim/trace-reader.h"
#include "check.h"

#include <sstream>
#include <string>
#include <vector>

static const std::string OWN =
    "edge-moe-trace 1 layers=2 experts=16 slots=4 policy=lru\n"
    "0 1 3+ 5+\n"
    "1 1 0+ 15+\n"
    "0 1 3 7+\n"
    "1 9 1+ 2+ 15\n"
    "0 1 5 9+ 3\n"
    "0 1 10+7 11+3\n";

static const std::string TITLES = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n";

// a prompt of two tokens, layer by layer as a batch is recorded, then one token of decode
static const std::string CSV =
    "# route_trace v1\n" + TITLES +
    "0,0,0,0,0,49,0.22,0,100\n0,0,0,0,1,19,0.19,0,100\n0,0,1,0,0,49,0.5,0,0\n0,0,1,0,1,8,1e-05,0,100\n"
    "0,0,0,1,0,1,0.22,0,100\n0,0,0,1,1,2,0.19,0,100\n0,0,1,1,0,3,0.5,0,100\n0,0,1,1,1,4,0.5,0,100\n"
    "0,1,2,0,0,49,0.5,1,0\n0,1,2,0,1,7,0.5,0,100\n0,1,2,1,0,2,0.5,1,0\n0,1,2,1,1,1,0.5,1,0\n";

static const std::string JSONL =
    "{\"tok\": 0, \"layers\": [[36, 38], [51, 139]]}\n"
    "{\"tok\": 1, \"layers\": [[36, 255], [51, 139]]}\n";

static bool read(const std::string & text, emc_prefill prefill, emc_trace & trace, std::string & error) {
    std::istringstream in(text);
    return emc_trace_read(in, "t", prefill, trace, error);
}

static void good() {
    emc_trace   trace;
    std::string error;
    CHECK(read(OWN, emc_prefill::TOKENS, trace, error));
    CHECK(trace.format == "edge-moe-trace" && trace.n_layers == 2 && trace.n_experts == 16 && trace.slots == 4);
    CHECK(trace.policy == "lru" && trace.complete && trace.n_used() == 2 && trace.events.size() == 6);
    CHECK(trace.events[3].phase == EMC_PREFILL && trace.events[3].layer == 1 && trace.events[3].n == 3);
    CHECK(trace.outcomes[0] == EMC_EMPTY_SLOT && trace.outcomes[4] == EMC_HIT && trace.outcomes.back() == 3);
    CHECK_EQ(emc_replay_difference(trace), std::string());
    CHECK(read(OWN, emc_prefill::SKIP, trace, error) && trace.events.size() == 5);

    // a prompt that streams: two rows are heard of, one expert is worth more than what would go, one is not
    CHECK(read(OWN + "0 0 1 2\n0 0 2 4\n0 9~ 10 2+5 4+9 1-\n0 1 4 2\n0 9~\n", emc_prefill::TOKENS, trace, error));
    CHECK(trace.events.size() == 11 && trace.events[6].heard_only && !trace.events[6].heard && trace.events[8].heard && trace.events[8].streams);
    CHECK(!trace.events[9].heard && trace.events[10].n == 0 && trace.outcomes[trace.events[8].first + 3] == EMC_PASSED);
    CHECK(read(OWN + "0 0 1 2\n0 9~ 2+5\n", emc_prefill::SKIP, trace, error) && trace.events.size() == 5);

    // a server that was killed leaves half a line; one that could not write says so
    CHECK(read(OWN + "0 1 1", emc_prefill::TOKENS, trace, error) && trace.events.size() == 6 && trace.complete);
    CHECK(read(OWN + "# dropped 3 events\n", emc_prefill::TOKENS, trace, error) && !trace.complete);

    CHECK(read(CSV, emc_prefill::TOKENS, trace, error) && trace.format == "csv");
    CHECK(trace.n_layers == 2 && trace.n_experts == 50 && trace.n_used() == 2 && trace.slots == 0 && trace.events.size() == 6);
    CHECK(trace.events[1].layer == 1 && trace.experts[trace.events[1].first] == 1);  // token by token
    CHECK(trace.events[2].layer == 0 && trace.experts[trace.events[2].first + 1] == 8);
    CHECK(trace.events[3].phase == EMC_PREFILL && trace.events[4].phase == EMC_DECODE);
    CHECK(read(CSV, emc_prefill::BATCH, trace, error) && trace.events.size() == 4 && trace.events[0].n == 3);
    CHECK(read(CSV, emc_prefill::SKIP, trace, error) && trace.events.size() == 2);

    CHECK(read(JSONL, emc_prefill::SKIP, trace, error) && trace.format == "jsonl");
    CHECK(trace.n_layers == 2 && trace.n_experts == 256 && trace.n_used() == 2 && trace.events.size() == 4);
    CHECK(read("{ \"tok\" :7,\"layers\":[ [1 ,2],[0]] }\r\n", emc_prefill::TOKENS, trace, error) && trace.events.size() == 2);
}

static void bad() {
    const std::string own  = "edge-moe-trace 1 layers=2 experts=16 slots=4 policy=lru\n";
    const std::string long_line(EMC_TRACE_LINE + 1, '7');
    const struct { std::string text; std::string message; } cases[] = {
        { "", "t:1: the file ends without an event" },
        { "\n\n", "t:3: the file ends without an event" },
        { own, "t:2: the file ends without an event" },
        { TITLES, "t:2: the file ends without an event" },
        { "hello\n", "t:1: \"hello\", expected a trace: " },
        { std::string("\x7f" "ELF\0\1\2", 7), "t:1: \"?ELF???\", expected a trace: " },
        { std::string(4, '\0') + "\n", "t:1: \"????\", expected a trace: " },
        { long_line, "t:1: a line of more than 1048576 bytes: not a trace" },
        { "{" + long_line, "t:1: a line of more than 1048576 bytes: not a trace" },

        { "edge-moe-trace 2 layers=2\n", "t:1: column 1: \"edge-moe-trace 2 layers=2\", expected 'edge-moe-trace 1 layers='" },
        { "edge-moe-trace 1 layers=0 experts=16\n", "t:1: column 25: \"0 experts=16\", expected layers from 1 to 512" },
        { "edge-moe-trace 1 layers=513 experts=1\n", "expected layers from 1 to 512" },
        { "edge-moe-trace 1 layers=2 experts=4097 slots=4 policy=lru\n", "expected experts from 1 to 4096" },
        { "edge-moe-trace 1 layers=2 experts=-1 slots=4 policy=lru\n", "\"-1 slots=4 policy=lru\", expected experts from" },
        { "edge-moe-trace 1 layers=2 experts=16 slots=0 policy=lru\n", "expected slots from 1 to 4096" },
        { "edge-moe-trace 1 layers=2 experts=16 slots=4\n", "the line ends, expected ' policy='" },
        { "edge-moe-trace 1 layers=2 experts=16 slots=4 policy=\n", "the line ends, expected the name of a policy" },
        { "edge-moe-trace 1 layers=2 experts=16 slots=4 policy=lru x=1\n", "\" x=1\", expected the name of a policy and the end" },
        { own + "2 1 3\n", "t:2: column 1: \"2 1 3\", expected a layer from 0 to 1" },
        { own + "0 -1 3\n", "t:2: column 3: \"-1 3\", expected rows from 0 to" },
        { own + "0 0~ 3\n", "t:2: column 4: \"~ 3\", expected ' '" },
        { own + "0 0 3+\n", "t:2: column 6: \"+\", expected ' '" },
        { own + "0 9 3-\n", "t:2: column 6: \"-\", expected ' '" },
        { own + "0 9~ 3 3-\n", "t:2: expert 3 twice in one event" },
        { own + "0 1\n", "t:2: column 4: the line ends, expected ' '" },
        { own + "0 1 \n", "t:2: column 5: the line ends, expected an expert from 0 to 15" },
        { own + "0 1 3 16\n", "t:2: column 7: \"16\", expected an expert from 0 to 15" },
        { own + "0 1 -3\n", "\"-3\", expected an expert" },
        { own + "0 1 99999999999999999999\n", "expected an expert" },
        { own + "0 1 3 3\n", "t:2: expert 3 twice in one event" },
        { own + "0 1 3+16\n", "\"16\", expected a victim from 0 to 15" },
        { own + "0 1 3+1x\n", "\"x\", expected the end of a number" },
        { own + "0 1 3++\n", "\"+\", expected a victim" },
        { own + "0 1 3,4\n", "\",4\", expected ' '" },
        { own + "0 1 3\n0 1 3", "" },
        { own + "0 1 3\nrubbish\n", "t:3: column 1: \"rubbish\", expected a layer" },

        { "turn,phase\n", "t:1: column 1: \"turn,phase\", expected 'turn,phase,step,layer" },
        { "# only a comment\n0,0,0\n", "t:2: column 1: \"0,0,0\", expected 'turn,phase" },
        { "# x\n" + TITLES.substr(0, TITLES.size() - 1) + ",more\n", "\",more\", expected the end of the line" },
        { TITLES + "0,2,0,0,0,49,0.2,0,1\n", "t:2: column 3: \"2,0,0,0,49,0.2,0,1\", expected a phase (0 prefill, 1 decode)" },
        { TITLES + "0,1,0,512,0,49,0.2,0,1\n", "expected a layer from 0 to 511" },
        { TITLES + "0,1,0,0,0,4096,0.2,0,1\n", "expected an expert from 0 to 4095" },
        { TITLES + "0,1,0,0,0,-1,0.2,0,1\n", "expected an expert from 0 to 4095" },
        { TITLES + "0,1,0,0,0\n", "t:2: column 10: the line ends, expected ','" },
        { TITLES + "0,1,0,0,0,5\n", "the line ends, expected ','" },
        { TITLES + "0,1,0,0,0,5,,0,1\n", "\",0,1\", expected a weight" },
        { TITLES + "0,1,0,0,0,5,0.1,0,1,9\n", "\",9\", expected the end of the line" },
        { TITLES + "0,1,0,0,0,5,0.1,0,1\n0,1,0,0,1,5,0.1,0,1\n", "t:3: expert 5 twice in one event" },

        { "{}\n", "t:1: column 2: \"}\", expected '\"tok\"'" },
        { "{\"tok\": -1, \"layers\": [[1]]}\n", "\"-1, \"layers\": [[1]]}\", expected a token's number from 0" },
        { "{\"tok\": 0, \"layers\": []}\n", "\"]}\", expected '['" },
        { "{\"tok\": 0, \"layers\": [[]]}\n", "\"]]}\", expected an expert from 0 to 4095" },
        { "{\"tok\": 0, \"layers\": [[1],[1,1]]}\n", "expert 1 twice in one event" },
        { "{\"tok\": 0, \"layers\": [[1.5]]}\n", "\".5]]}\", expected ']'" },
        { "{\"tok\": 0, \"layers\": [[4096]]}\n", "expected an expert from 0 to 4095" },
        { "{\"tok\": 0, \"layers\": [[1], {}]}\n", "\"{}]}\", expected '['" },
        { "{\"tok\": 0, \"layers\": [[1]\n", "the line ends, expected ']'" },
        { "{\"tok\": 0, \"layers\": [[1]]} x\n", "\"x\", expected the end of the line" },
    };
    for (const auto & c : cases) {
        emc_trace   trace;
        std::string error;
        const bool  accepted = read(c.text, emc_prefill::TOKENS, trace, error);
        if (accepted != c.message.empty() || error.find(c.message) == std::string::npos || error.find('\n') != std::string::npos) {
            std::cerr << "input: " << c.text.substr(0, 200) << "\nmessage: " << error << "\nexpected: " << c.message << "\n";
            abort();
        }
    }
    std::string many = "{\"tok\": 0, \"layers\": [[1]";
    for (int i = 0; i < EMC_TRACE_LAYERS; ++i) {
        many += ",[1]";
    }
    emc_trace   trace;
    std::string error;
    CHECK(!read(many + "]}\n", emc_prefill::TOKENS, trace, error) && error.find("at most 512 layers") != std::string::npos);
}

// Whatever is read at all is sound, and can be replayed.
static void check_sound(const emc_trace & trace) {
    CHECK(!trace.events.empty() && trace.n_layers <= EMC_TRACE_LAYERS && trace.n_experts <= EMC_TRACE_EXPERTS);
    CHECK(trace.slots == 0 || trace.outcomes.size() == trace.experts.size());
    for (const emc_event & event : trace.events) {
        CHECK(event.layer >= 0 && event.layer < trace.n_layers && event.n > 0);
        CHECK(event.first + (size_t) event.n <= trace.experts.size());
    }
    for (const int32_t expert : trace.experts) {
        CHECK(expert >= 0 && expert < trace.n_experts);
    }
    if (trace.n_layers * trace.n_experts < 2000) {
        const uint64_t best = emc_replay_belady(trace, 2).hits[EMC_DECODE];
        CHECK(emc_replay(trace, "echo", 2, emc_pool::LAYER).lookups[EMC_DECODE] >= best);
        if (trace.slots > 0 && trace.policy == "lru") {
            emc_replay_difference(trace);
        }
    }
}

static void fuzz(test_random & random, int seconds) {
    static const char * const PIECES[] = {
        "0", "1", "-", "9", "4095", "4096", "2147483648", "99999999999999999999", ",", "+", " ", "\n", "\r\n", "#", "[", "]", "{", "}", "\"",
        "edge-moe-trace 1 ", "layers=", "# dropped 1", "0,1,0,0,0,5,0.1,0,1\n", "[[1,2],[3]]", "\xff", "\t", ".5", "1e9",
    };
    const std::vector<std::string> seeds = { OWN, CSV, JSONL };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    uint64_t runs     = 0;
    uint64_t accepted = 0;
    while (std::chrono::steady_clock::now() < end) {
        std::string text = seeds[random.in(0, seeds.size() - 1)];
        for (uint64_t edits = random.in(1, 6); edits > 0 && !text.empty(); --edits) {
            const size_t at = random.in(0, text.size() - 1);
            const size_t n  = random.in(1, 12);
            switch (random.in(0, 5)) {
                case 0: text[at] = (char) random.in(0, 255); break;
                case 1: text.erase(at, n); break;
                case 2: text.insert(at, PIECES[random.in(0, sizeof(PIECES) / sizeof(PIECES[0]) - 1)]); break;
                case 3: text.insert(random.in(0, text.size()), text.substr(at, n * 4)); break;
                case 4: text.resize(at); break;
                default: text[at] = (char) ('0' + random.in(0, 9));
            }
        }
        emc_trace   trace;
        std::string error;
        if (read(text, (emc_prefill) random.in(0, 2), trace, error)) {
            check_sound(trace);
            accepted += 1;
        } else {
            CHECK(error.compare(0, 2, "t:") == 0 && error.find('\n') == std::string::npos && error.size() < 400);
        }
        runs += 1;
    }
    printf("fuzz: %llu files, %llu accepted\n", (unsigned long long) runs, (unsigned long long) accepted);
    CHECK(seconds == 0 || (accepted > 0 && accepted < runs));
}

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));
    int seconds = 5;
    for (int i = 1; i + 1 < argc; ++i) {
        if (strcmp(argv[i], "--seconds") == 0) {
            seconds = atoi(argv[i + 1]);
        }
    }
    good();
    bad();
    fuzz(random, seconds);
    return 0;
}
