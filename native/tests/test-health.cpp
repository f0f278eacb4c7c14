// SPDX-License-Identifier: MIT
// The health file.
#include "../src/engine/health.h"
#include "check.h"

#include <atomic>
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

int main() {
    text();
    writer();
    return 0;
}
