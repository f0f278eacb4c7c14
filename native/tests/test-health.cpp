// SPDX-License-Identifier: MIT
// The health file, and the trace: what it records, replayed through a slot table, gives the same victims.
#include "../src/engine/cache.h"
#include "../src/engine/health.h"
#include "fake-reader.h"

#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

static std::string slurp(const std::string & path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

static bool has(const std::string & text, const std::string & line) {
    return text.find("\n" + line + "\n") != std::string::npos;
}

static emc_health sample() {
    emc_health h;
    h.on = true;
    h.policy = "lru";
    h.engine = "pread";
    h.direct = true;
    h.delivered_bytes = 264241152;
    h.cycles = 5.25;
    h.stats.hits[EMC_DECODE]    = 7;
    h.stats.misses[EMC_PREFILL] = 3;
    h.stats.streamed[EMC_PREFILL] = 2;
    h.stats.stall_ns = 1500000000;
    return h;
}

static void text() {
    std::string t = emc_health_text(sample(), 42, 1700000000.5);
    CHECK(has(t, "edge_moe_cache_info{pid=\"42\",mode=\"cache\",reason=\"\",policy=\"lru\",engine=\"pread\",direct=\"1\"} 1"));
    CHECK(has(t, "edge_moe_cache_delivered_bytes{pid=\"42\"} 264241152"));
    CHECK(has(t, "edge_moe_cache_cycles{pid=\"42\"} 5.250000"));
    CHECK(has(t, "edge_moe_cache_hits_total{pid=\"42\",phase=\"decode\"} 7"));
    CHECK(has(t, "edge_moe_cache_misses_total{pid=\"42\",phase=\"prefill\"} 3"));
    CHECK(has(t, "edge_moe_cache_streamed_total{pid=\"42\",phase=\"prefill\"} 2"));
    CHECK(has(t, "edge_moe_cache_stall_seconds_total{pid=\"42\"} 1.500000"));
    CHECK(has(t, "edge_moe_cache_updated_timestamp_seconds{pid=\"42\"} 1700000000.500000"));
    emc_health off;
    off.reason = "a \"quoted\" \\ reason\nof two lines";
    t = emc_health_text(off, 1, 0);
    CHECK(t.find("mode=\"mmap\",reason=\"a \\\"quoted\\\" \\\\ reason\\nof two lines\"") != std::string::npos);
    // a sample is a name, labels and one number; each name is declared first
    std::istringstream lines(t);
    int samples = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line[0] != '#') {
            samples += 1;
            CHECK(line.find("edge_moe_cache_") == 0 && line.find("{pid=\"1\"") != std::string::npos);
            const std::string name = line.substr(0, line.find('{'));
            CHECK(t.find("# TYPE " + name + " ") < t.find("\n" + name + "{"));
        }
    }
    CHECK_EQ(samples, 27);
}

static void writer() {
    char name[] = "/tmp/edge-moe-health-XXXXXX";
    const std::string dir = mkdtemp(name);
    std::string error;
    CHECK(emc_health_writer::usable(dir, error));
    CHECK(!emc_health_writer::usable(dir + "/none", error) && !error.empty());

    // someone left a link under the temporary name: it is replaced, not followed
    const std::string bait = dir + "/bait";
    std::ofstream(bait) << "untouched";
    CHECK_EQ(symlink(bait.c_str(), (dir + "/.cache-7.tmp").c_str()), 0);
    std::atomic<uint64_t> hits{1};
    {
        emc_health_writer w(dir, 7, [&] {
            emc_health h = sample();
            h.stats.hits[EMC_DECODE] = hits;
            return h;
        });
        CHECK_EQ(w.path(), dir + "/cache-7.prom");
        const auto wait_for = [&](const char * value) {
            for (int i = 0; i < 500 && !has(slurp(w.path()), std::string("edge_moe_cache_hits_total{pid=\"7\",phase=\"decode\"} ") + value); ++i) {
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            }
            CHECK(has(slurp(w.path()), std::string("edge_moe_cache_hits_total{pid=\"7\",phase=\"decode\"} ") + value));
        };
        wait_for("1");
        struct stat info;
        CHECK(lstat(w.path().c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 0777) == 0644);
        hits = 2;
        wait_for("2");
    }
    CHECK(access((dir + "/cache-7.prom").c_str(), F_OK) != 0);
    CHECK_EQ(slurp(bait), std::string("untouched"));
    CHECK_EQ(unlink(bait.c_str()), 0);
    CHECK_EQ(rmdir(dir.c_str()), 0);  // nothing else is left
}

static void trace_replays(uint64_t seed) {
    const int n_experts = 16;
    const int n_slots   = 6;
    test_random random(seed);
    std::vector<emc_layer> layers(2);
    for (emc_layer & layer : layers) {
        layer.n_experts = n_experts;
        layer.kinds = { { 0, 0, 5000 }, { 0, 1 << 20, 3000 } };
    }
    const std::string path = "trace-" + std::to_string(getpid());
    std::string error;
    CHECK(!emc_trace_writer::make("/no/such/dir/t", "h", error) && error.find("/no/such/dir/t") != std::string::npos);
    fake_reader_state io;
    uint64_t misses = 0;
    {
        emc_cache_options options;
        options.n_slots = n_slots;
        auto trace = emc_trace_writer::make(path, "edge-moe-trace 1 layers=2 experts=16 slots=6 policy=lru", error);
        CHECK(trace);
        auto cache = emc_cache::make(layers, options, std::make_unique<fake_reader>(io), std::move(trace), error);
        for (int token = 0; token < 400; ++token) {
            for (int layer = 0; layer < 2; ++layer) {
                std::vector<int32_t> experts;
                for (int e = 0; e < n_experts; ++e) {
                    if (random.in(0, 7) == 0 && experts.size() < 6) {
                        experts.push_back(e);
                    }
                }
                for (int kind = 0; kind < 2; ++kind) {
                    emc_call * call = cache->acquire(layer, kind, experts.data(), (int) experts.size(), 1, "batch", 1);
                    io.finish_all();
                    CHECK_EQ(call != nullptr, !experts.empty());
                    if (call) {
                        cache->release(call);
                    }
                }
            }
        }
        misses = cache->stats().misses[EMC_DECODE];
        cache->check();
    }

    std::vector<std::unique_ptr<emc_slot_table>> tables;
    for (int layer = 0; layer < 2; ++layer) {
        tables.push_back(std::make_unique<emc_slot_table>(n_experts, n_slots, emc_policy_make("lru", n_slots)));
    }
    std::ifstream file(path);
    std::string line;
    CHECK(std::getline(file, line) && line.find("edge-moe-trace 1 ") == 0);
    emc_tick tick     = 0;
    uint64_t replayed = 0;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        int layer = -1;
        int64_t rows = 0;
        CHECK(words >> layer >> rows);
        emc_slot_table & table = *tables.at(layer);
        tick += 1;
        std::vector<std::pair<int, std::string>> items;
        for (std::string word; words >> word;) {
            items.push_back({ std::stoi(word), word });
        }
        for (const auto & item : items) {
            if (table.find(item.first) != EMC_NO_SLOT) {
                table.pin(table.find(item.first));
            }
        }
        std::vector<emc_slot> held;
        for (const auto & item : items) {
            std::string expected = std::to_string(item.first);
            if (table.find(item.first) != EMC_NO_SLOT) {
                table.hit(table.find(item.first), tick);
            } else {
                int evicted = -1;
                const emc_slot slot = table.begin_load(item.first, tick, &evicted);
                CHECK(slot != EMC_NO_SLOT);
                expected += "+" + (evicted >= 0 ? std::to_string(evicted) : "");
                replayed += 1;
            }
            CHECK_EQ(item.second, expected);
            held.push_back(table.find(item.first));
        }
        for (const emc_slot slot : held) {
            table.complete(slot, table.state(slot) == emc_slot_state::LOADING ? table.generation(slot) : table.generation(slot) - 1);
            table.unpin(slot);
        }
    }
    CHECK_EQ(replayed, misses);
    CHECK(misses > 500);
    unlink(path.c_str());
}

int main(int argc, char ** argv) {
    const uint64_t seed = test_seed(argc, argv);
    text();
    writer();
    trace_replays(seed);
    return 0;
}
