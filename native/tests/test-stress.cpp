// SPDX-License-Identifier: MIT
// Contexts with several threads each, on a real reader (named on the command line) and real files, under eviction,
// delays, short reads and errors: every byte that a call hands out is the byte of its expert, and every expert is handed
// out once. Decode and prefill alternate and meet. The engine is compiled with delays at every hand-over between threads.
#include "../src/core/hand-over.h"
#include "../src/engine/cache.h"
#include "../src/io/file-set.h"
#include "../src/io/io-calls.h"
#include "payload.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <thread>

namespace {

constexpr int N_LAYERS  = 3;
constexpr int N_EXPERTS = 12;

// Slow, short, interrupted and failing by turns, from the offset and a counter.
struct troubled_calls : emc_io_calls {
    explicit troubled_calls(uint64_t seed_) : seed(seed_) {}
    int64_t read_result(int64_t result, void * buffer, uint64_t length, uint64_t offset) override {
        if (length < EMC_ALIGN) {
            return result;
        }
        const uint64_t dice = (offset * 2654435761u + seed + calls++ * 40503u) >> 7;
        if (dice % 7 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(dice % 300));
        }
        int64_t seen = result;
        if (dice % 11 == 0) {
            seen = dice % 2 ? -EINTR : -EAGAIN;
        } else if (dice % 97 == 0) {
            errors += 1;
            seen = -EIO;
        } else if (dice % 5 == 0 && result > 4096) {
            seen = result - 4096 + 100;
        }
        if (seen < result) {
            // what did not arrive is not there
            memset((char *) buffer + std::max<int64_t>(seen, 0), 0xEE, (size_t) (result - std::max<int64_t>(seen, 0)));
        }
        return seen;
    }
    const uint64_t        seed;
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> errors{0};
};

std::atomic<uint64_t> hand_overs{0};

// As ggml's threads meet: thread 0 acquires, all walk, all release.
struct meeting {
    explicit meeting(int n_) : n(n_) {}
    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        const uint64_t turn = turns;
        if (++here == n) {
            here = 0;
            turns += 1;
            changed.notify_all();
        } else {
            changed.wait(lock, [&] { return turns != turn; });
        }
    }
    const int               n;
    int                     here  = 0;
    uint64_t                turns = 0;
    std::mutex              mutex;
    std::condition_variable changed;
};

std::string reader_name;

std::unique_ptr<emc_reader> make_reader(const emc_file_set & files, emc_io_calls * calls) {
    std::string why;
    return reader_name == "pread" ? emc_reader_pread(files, 3, calls) : emc_reader_uring(files, 3, why, calls);
}

} // namespace

// Mostly nothing, often a step aside for others, now and then long enough for everybody else to get far.
void emc_test_hand_over() {
    uint64_t dice = hand_overs.fetch_add(1, std::memory_order_relaxed) * 0x9E3779B97F4A7C15ull;
    dice ^= dice >> 31;
    if (dice % 128 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(dice / 128 % 400));
    } else if (dice % 4 == 0) {
        std::this_thread::yield();
    }
}

// identity: the same in every request, as that of a graph that is reused
static void context(emc_cache & cache, const std::vector<emc_layer> & layers, const void * identity, uint64_t seed, int n_threads, int n_tokens) {
    meeting barrier(n_threads);
    emc_call * call = nullptr;
    int layer = 0;
    int kind  = 0;
    std::vector<int32_t> experts;
    std::vector<std::atomic<int>> seen(N_EXPERTS);

    const auto work = [&](int ith) {
        test_random random(seed);
        for (int token = 0; token < n_tokens; ++token) {
            for (int l = 0; l < N_LAYERS; ++l) {
                // all threads draw the same numbers, only the first uses them
                const bool prefill = random.in(0, 3) == 0;
                const int  n       = (int) (prefill ? random.in(3, N_EXPERTS) : random.in(1, 4));
                const int  n_kinds = (int) layers[(size_t) l].kinds.size() - (random.in(0, 9) == 0);  // some batches are abandoned
                std::vector<int32_t> all(N_EXPERTS);
                for (int e = 0; e < N_EXPERTS; ++e) {
                    all[e] = e;
                }
                std::shuffle(all.begin(), all.end(), random.engine);
                for (int k = 0; k < n_kinds; ++k) {
                    if (ith == 0) {
                        experts.assign(all.begin(), all.begin() + n);
                        std::sort(experts.begin(), experts.end());
                        for (auto & s : seen) {
                            s = 0;
                        }
                        layer = l;
                        kind  = k;
                        call  = cache.acquire(l, k, experts.data(), n, prefill ? 9 : 1, identity, n_threads,
                            prefill && k == 0 && n % 2 ? emc_tail{ all.data(), n, 1 } : emc_tail());
                        if (!prefill && k == 0 && l + 1 < N_LAYERS) {
                            cache.foresee(l + 1, all.data(), 4);  // right by chance, often enough
                        }
                    }
                    barrier.wait();
                    if (call) {
                        for (int i = 0; i < n; ++i) {
                            const int entry = cache.next(call, i);
                            CHECK(entry >= 0 && entry < n);
                            const void * data = cache.data(call, entry);
                            if (data) {
                                payload_check(layers[layer].kinds[kind], experts[entry], data, 61);
                            }
                            seen[entry] += 1;
                        }
                        cache.release(call);
                    }
                    barrier.wait();
                    if (ith == 0 && call) {
                        for (int i = 0; i < n; ++i) {
                            CHECK_EQ(seen[i].load(), n_threads);
                        }
                    }
                }
            }
        }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < n_threads; ++i) {
        threads.emplace_back(work, i);
    }
    for (std::thread & t : threads) {
        t.join();
    }
}

static void run(uint64_t seed, int n_slots, int n_staging, int n_contexts, int n_threads, bool trouble, int n_tokens) {
    // separate tensors in one file, fused gate_up split over two files, layers of different size
    std::vector<emc_layer> layers(N_LAYERS);
    uint64_t at[2] = { 4064, 32 };
    for (int l = 0; l < N_LAYERS; ++l) {
        layers[l].n_experts = N_EXPERTS;
        const bool fused = l == 1;
        for (int k = 0; k < (fused ? 2 : 3); ++k) {
            const int      file   = fused ? k : 0;
            const uint64_t stride = 9632 + 4096 * (uint64_t) l + 1248 * (uint64_t) k;
            layers[l].kinds.push_back({ file, at[file], stride });
            at[file] += stride * N_EXPERTS;
        }
    }
    const payload_file file0(0, at[0]);
    const payload_file file1(1, at[1]);
    emc_file_set files;
    CHECK_EQ(files.add(file0.path), 0);
    CHECK_EQ(files.add(file1.path), 1);
    troubled_calls calls(seed);

    emc_cache_options options;
    options.n_slots    = n_slots;
    options.n_staging  = n_staging;
    options.read_bytes = 8192;
    options.n_guesses  = 4;
    options.on_trial   = false;
    std::string error;
    auto cache = emc_cache::make(layers, options, make_reader(files, trouble ? &calls : nullptr), nullptr, error);
    CHECK(cache);

    const char identities[4] = {};
    CHECK(n_contexts <= 4);
    for (int request = 0; request < 2; ++request) {
        std::vector<std::thread> contexts;
        for (int c = 0; c < n_contexts; ++c) {
            contexts.emplace_back([&, c] { context(*cache, layers, &identities[c], seed + (uint64_t) (c + 10 * request), n_threads, n_tokens); });
        }
        for (std::thread & t : contexts) {
            t.join();
        }
    }
    // the last pieces may still be on their way
    while (cache->stats().pieces_landed != cache->stats().pieces_queued) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    cache->check();
    const emc_stats s = cache->stats();
    CHECK(s.evictions > 0 && s.hits[EMC_DECODE] > 0 && s.read_bytes > 0);
    CHECK_EQ(s.errors > 0, trouble && calls.errors > 0);
    CHECK(s.decode_tokens > 0 && (n_contexts > 1 || s.guessed_used > 0));
    CHECK(n_staging == 0 || (s.streamed[EMC_PREFILL] > 0 && s.ahead_used > 0));
    printf("slots %d staging %d contexts %d threads %d trouble %d: ", n_slots, n_staging, n_contexts, n_threads, trouble);
    for (int p = 0; p < 2; ++p) {
        printf("%s %llu hits %llu misses %llu streamed %llu bypass; ", p == EMC_DECODE ? "decode" : "prefill", (unsigned long long) s.hits[p],
            (unsigned long long) s.misses[p], (unsigned long long) s.streamed[p], (unsigned long long) s.bypass[p]);
    }
    printf("%llu evictions %llu ahead %llu dropped %llu errors\n", (unsigned long long) s.evictions, (unsigned long long) s.ahead_queued,
        (unsigned long long) s.ahead_dropped, (unsigned long long) s.errors);
    fflush(stdout);
}

int main(int argc, char ** argv) {
    CHECK(argc >= 2);
    reader_name = argv[1];
    if (!make_reader(emc_file_set(), nullptr)) {
        printf("skipped: the kernel refuses %s\n", argv[1]);
        return 77;
    }
    const uint64_t seed = test_seed(argc, argv);
    const int n_tokens = 30;
    for (const int n_slots : { 4, 8 }) {
        for (const int n_staging : { 0, 1, 5 }) {
            run(seed, n_slots, n_staging, 1, 2, false, n_tokens);
            run(seed, n_slots, n_staging, 1, 3, true,  n_tokens);
            run(seed, n_slots, n_staging, 2, 2, false, n_tokens);
            run(seed, n_slots, n_staging, 3, 2, true,  n_tokens);
        }
    }
    return 0;
}
