// SPDX-License-Identifier: MIT
// The miss path without llama.cpp: acquire experts that are in no slot, wait for all their pieces, release. What it
// times includes queueing, completion and wake-ups. One run, one JSON object on stdout.
//
//   edge-moe-read-bench FILE [--reader auto|pread|io_uring] [--depth N] [--read-kib N] [--misses N] [--seconds X]
//                            [--compute-us N] [--layers N] [--experts N] [--piece N] [--seed N]
//
// --compute-us is what multiplying by a piece takes once it has landed, for the overlap of reads with computing; 0 times
// reads alone.
// Reader, depth and read size are by default those of the product. FILE is taken as layers x experts x 3 kinds of pieces,
// back to back as in a model, from an offset that is no page.
#include "../src/core/config.h"
#include "../src/engine/cache.h"
#include "../src/io/file-set.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>

namespace {

using steady = std::chrono::steady_clock;

constexpr int      N_KINDS = 3;
constexpr uint64_t FIRST   = 4064;

struct settings {
    std::string reader     = emc_config().reader;
    int         depth      = emc_config().io_depth;
    int         read_kib   = emc_config().read_kib;
    int         misses     = 16;      // experts that one batch misses in a layer
    double      seconds    = 2;
    int         compute_us = 0;
    int         layers     = 24;
    int         experts    = 64;
    uint64_t    piece      = 557056;
    uint64_t    seed       = 1;
};

double seconds_between(steady::time_point a, steady::time_point b) {
    return std::chrono::duration<double>(b - a).count();
}

double cpu_seconds() {
    rusage used = {};
    getrusage(RUSAGE_SELF, &used);
    return (double) (used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double) (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

long context_switches() {
    rusage used = {};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw + used.ru_nivcsw;
}

// The q-quantile, in microseconds.
double quantile(std::vector<double> & values, double q) {
    const size_t i = std::min(values.size() - 1, (size_t) (q * (double) values.size()));
    std::nth_element(values.begin(), values.begin() + (std::ptrdiff_t) i, values.end());
    return values[i] * 1e6;
}

[[noreturn]] void fail(const std::string & why) {
    fprintf(stderr, "edge-moe-read-bench: %s\n", why.c_str());
    exit(1);
}

settings parse(int argc, char ** argv) {
    settings s;
    for (int i = 2; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const char *      text = argv[i + 1];
        if      (name == "--reader")     { s.reader     = text; }
        else if (name == "--depth")      { s.depth      = atoi(text); }
        else if (name == "--read-kib")   { s.read_kib   = atoi(text); }
        else if (name == "--misses")     { s.misses     = atoi(text); }
        else if (name == "--seconds")    { s.seconds    = atof(text); }
        else if (name == "--compute-us") { s.compute_us = atoi(text); }
        else if (name == "--layers")     { s.layers     = atoi(text); }
        else if (name == "--experts")    { s.experts    = atoi(text); }
        else if (name == "--piece")      { s.piece      = strtoull(text, nullptr, 10); }
        else if (name == "--seed")       { s.seed       = strtoull(text, nullptr, 10); }
        else { fail("no option " + name); }
    }
    if (argc < 2 || argc % 2 != 0) {
        fail("usage: FILE [--option value]...");
    }
    if (s.depth < 1 || s.read_kib < 4 || s.read_kib % 4 != 0 || s.layers < 1 || s.misses < 1 || s.misses * 2 > s.experts) {
        fail("depth, layers and misses are at least 1, read-kib a multiple of 4, misses at most half of experts");
    }
    return s;
}

// Each draw shares no expert with the draw before, which is what the layer's slots hold: all of it misses.
class expert_draw {
public:
    expert_draw(int n_experts, int n_) : n(n_), order((size_t) n_experts) { std::iota(order.begin(), order.end(), 0); }

    const int32_t * next(std::mt19937_64 & random) {
        std::shuffle(order.begin() + n, order.end(), random);
        std::swap_ranges(order.begin(), order.begin() + n, order.begin() + n);
        std::sort(order.begin(), order.begin() + n);
        return order.data();
    }

private:
    const int            n;
    std::vector<int32_t> order;  // the first n are the last draw
};

} // namespace

int main(int argc, char ** argv) {
    settings s = parse(argc, argv);

    emc_file_set files;
    struct stat file = {};
    if (stat(argv[1], &file) != 0 || files.add(argv[1]) != 0) {
        fail("cannot open " + std::string(argv[1]));
    }
    std::vector<emc_layer> layers((size_t) s.layers);
    uint64_t at = FIRST;
    for (emc_layer & layer : layers) {
        layer.n_experts = s.experts;
        for (int k = 0; k < N_KINDS; ++k) {
            layer.kinds.push_back({ 0, at, s.piece });
            at += s.piece * (uint64_t) s.experts;
        }
    }
    if (at > (uint64_t) file.st_size) {
        fail(std::string(argv[1]) + " has " + std::to_string(file.st_size) + " bytes; this shape needs " + std::to_string(at));
    }

    std::string why;
    // a pool by name is as deep as asked, which the product does not allow
    auto reader = s.reader == "pread" ? emc_reader_pread(files, s.depth) : emc_reader_make(s.reader, files, s.depth, why);
    if (!reader) {
        fail(why);
    }
    s.reader = reader->name();
    emc_cache_options options;
    options.n_slots    = s.misses;
    options.read_bytes = (uint64_t) s.read_kib * 1024;
    const auto cache = emc_cache::make(layers, options, std::move(reader), nullptr, why);
    if (!cache) {
        fail(why);
    }

    std::mt19937_64          random(s.seed);
    std::vector<expert_draw> draws((size_t) s.layers, expert_draw(s.experts, s.misses));
    std::vector<double>      latencies;
    latencies.reserve(1 << 20);
    const auto sweep = [&](steady::time_point end) {
        for (int l = 0; l < s.layers && steady::now() < end; ++l) {
            const int32_t * experts = draws[(size_t) l].next(random);
            const auto begin = steady::now();
            for (int k = 0; k < N_KINDS; ++k) {
                emc_call * call = cache->acquire(l, k, experts, s.misses, 1, &random, 1);
                if (!call) {
                    fail("the cache stepped aside");
                }
                for (int i = 0; i < s.misses; ++i) {
                    if (!cache->data(call, cache->next(call, i))) {
                        fail("a read failed");
                    }
                    const auto computed = steady::now() + std::chrono::microseconds(s.compute_us);
                    while (s.compute_us > 0 && steady::now() < computed) {
                    }
                }
                cache->release(call);
            }
            latencies.push_back(seconds_between(begin, steady::now()));
        }
    };

    sweep(steady::time_point::max());  // the slots' memory is there from here on
    latencies.clear();
    const emc_stats before   = cache->stats();
    const double    cpu      = cpu_seconds();
    const long      switches = context_switches();
    const auto      begin    = steady::now();
    const auto      end      = begin + std::chrono::duration_cast<steady::duration>(std::chrono::duration<double>(s.seconds));
    while (steady::now() < end) {
        sweep(end);
    }
    const double    elapsed  = seconds_between(begin, steady::now());
    const double    cpu_used = cpu_seconds() - cpu;
    const emc_stats after    = cache->stats();
    cache->check();

    const double bytes = (double) (after.read_bytes - before.read_bytes);
    printf("{\"reader\": \"%s\", \"direct\": %s, \"depth\": %d, \"read_kib\": %d, \"misses\": %d, \"bytes\": %.0f, \"seconds\": %.4f, "
        "\"bytes_per_s\": %.0f, \"cpu_s_per_gib\": %.5f, \"switches_per_gib\": %.0f, \"batches\": %zu, \"batch_p50_us\": %.1f, \"batch_p99_us\": %.1f}\n",
        s.reader.c_str(), files.direct() ? "true" : "false", s.depth, s.read_kib, s.misses, bytes, elapsed, bytes / elapsed,
        cpu_used / (bytes / (1 << 30)), (double) (context_switches() - switches) / (bytes / (1 << 30)), latencies.size(),
        quantile(latencies, 0.5), quantile(latencies, 0.99));
    return 0;
}
