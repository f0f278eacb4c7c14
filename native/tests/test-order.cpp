// SPDX-License-Identifier: MIT
// One test for each race that cache.h names, driven step by step, and the counting rules.
#include "../src/core/order.h"
#include "../src/engine/cache.h"
#include "fake-reader.h"

#include <algorithm>
#include <thread>

namespace {

// Two layers of 8 experts, pieces of three sizes at offsets that are multiples of 32 only.
std::vector<emc_layer> layout() {
    std::vector<emc_layer> layers(2);
    uint64_t at = 1056;
    for (emc_layer & layer : layers) {
        layer.n_experts = 8;
        for (const uint64_t stride : { 10016ull, 12288ull, 4064ull }) {
            layer.kinds.push_back({ 0, at, stride });
            at += stride * 8;
        }
    }
    return layers;
}

struct fixture {
    explicit fixture(int n_slots, uint64_t read_bytes = 4096) {
        emc_cache_options options;
        options.n_slots    = n_slots;
        options.read_bytes = read_bytes;
        options.policy     = "lru";  // whose victims a test can name
        std::string error;
        cache = emc_cache::make(layout(), options, std::make_unique<fake_reader>(io), nullptr, error);
        CHECK(cache);
    }
    emc_call * acquire(int layer, int kind, std::vector<int32_t> experts, int64_t rows = 1, const void * batch = "batch") {
        return cache->acquire(layer, kind, experts.data(), (int) experts.size(), rows, batch, 1);
    }
    // Computes the call as a thread would: in its order, and every expert exactly once.
    void compute(emc_call * call, int layer, int kind) {
        const std::vector<emc_layer> layers = layout();
        std::vector<int> seen(call->n, 0);
        for (int i = 0; i < call->n; ++i) {
            const int entry = call->order[i];
            const void * data = cache->wait(call, entry);
            CHECK(data);
            payload_check(layers[layer].kinds[kind], call->experts[entry], data);
            seen[entry] += 1;
        }
        CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
        CHECK(cache->release(call));
    }
    // A whole layer with no read left behind.
    void event(int layer, const std::vector<int32_t> & experts, int64_t rows = 1) {
        for (int kind = 0; kind < 3; ++kind) {
            emc_call * call = acquire(layer, kind, experts, rows);
            CHECK(call);
            io.finish_all();
            compute(call, layer, kind);
        }
    }
    fake_reader_state          io;
    std::unique_ptr<emc_cache> cache;
};

} // namespace

static void order_is_a_permutation(test_random & random) {
    for (int round = 0; round < 20000; ++round) {
        const size_t n = random.in(0, 16);
        std::vector<int> asked(n, 0);
        std::vector<uint8_t> snapshot(n, 9);
        std::vector<int32_t> order(n, -1);
        // the state changes from question to question, as reads that end do: late experts become ready
        emc_order_ready_first(n, [&](size_t i) { return asked[i]++ > 0 || random.in(0, 1); }, snapshot.data(), order.data());
        std::vector<int32_t> sorted = order;
        std::sort(sorted.begin(), sorted.end());
        for (size_t i = 0; i < n; ++i) {
            CHECK_EQ(asked[i], 1);
            CHECK_EQ(sorted[i], (int32_t) i);
        }
        for (size_t i = 1; i < n; ++i) {
            CHECK(snapshot[order[i - 1]] >= snapshot[order[i]]);
            CHECK(snapshot[order[i - 1]] != snapshot[order[i]] || order[i - 1] < order[i]);
        }
    }
}

// Reads end at every possible point between the queueing of reads and the making of the order.
static void readiness_read_once() {
    const std::vector<int32_t> experts = { 1, 3, 4, 6 };
    for (size_t ended = 0; ended <= 40; ++ended) {
        fixture f(4);
        f.io.in_submit = [&] {
            for (size_t i = 0; i < ended && !f.io.queue.empty(); ++i) {
                f.io.finish(0);
            }
        };
        emc_call * call = f.acquire(0, 0, experts);
        std::vector<int32_t> order(call->order.begin(), call->order.begin() + call->n);
        std::sort(order.begin(), order.end());
        CHECK(order == std::vector<int32_t>({ 0, 1, 2, 3 }));
        f.io.in_submit = nullptr;
        f.io.finish_all();
        f.compute(call, 0, 0);
        f.cache->check();
    }
}

// The executing kind of all missing experts is queued before any other kind; resident experts come first.
static void executing_kind_first() {
    fixture f(6);
    f.event(0, { 2, 5 });
    for (int kind = 0; kind < 3; ++kind) {
        fixture g(6);
        g.event(0, { 2, 5 });
        emc_call * call = g.acquire(0, kind, { 1, 2, 4, 5 });
        int last = 0;
        for (const emc_read & read : g.io.queue) {
            const int step = (read.kind - kind + 3) % 3;
            CHECK(step >= last);
            last = step;
        }
        CHECK_EQ(last, 2);
        CHECK_EQ(call->experts[call->order[0]], 2);
        CHECK_EQ(call->experts[call->order[1]], 5);
        // the residents can be used while nothing has been read
        CHECK(g.cache->wait(call, call->order[0]) && g.cache->wait(call, call->order[1]));
        g.io.finish_all();
        g.compute(call, 0, kind);
        g.cache->check();
    }
}

// A thread that waits for one piece is released by that piece, whatever else is still to come.
static void waits_only_for_its_piece() {
    fixture f(4, 1 << 20);
    emc_call * call = f.acquire(0, 0, { 3, 7 });
    CHECK_EQ(f.io.queue.size(), 6u);  // one read a piece
    std::thread waiter([&] { CHECK(f.cache->wait(call, 1)); });
    f.io.finish(1);  // gate of expert 7, the second
    waiter.join();
    CHECK_EQ(f.io.queue.size(), 5u);
    f.io.finish_all();
    f.compute(call, 0, 0);
    f.cache->check();
}

static void slot_in_use_is_pinned() {
    fixture f(4);
    f.event(0, { 0, 1, 2, 3 });
    emc_call * first = f.acquire(0, 0, { 0, 1, 2, 3 }, 1, "first");
    CHECK(first);
    // another context wants other experts of the layer: no slot can be taken, so it uses the mapping
    CHECK(!f.acquire(0, 0, { 4, 5 }, 1, "second"));
    // the same experts it may share
    emc_call * shared = f.acquire(0, 0, { 1, 3 }, 1, "third");
    CHECK(shared && f.io.queue.empty());
    f.compute(first, 0, 0);
    emc_call * second = f.acquire(0, 0, { 4, 5 }, 1, "second");
    CHECK(second);
    f.io.finish_all();
    // 1 and 3 were in use, so 0 and 2 had to go
    f.compute(shared, 0, 0);
    f.compute(second, 0, 0);
    f.event(0, { 1, 3, 4, 5 });
    CHECK_EQ(f.cache->stats().bypass[EMC_DECODE], 1u);
    f.cache->check();
}

static void no_duplicate_read() {
    fixture f(4);
    emc_call * first  = f.acquire(0, 0, { 2, 6 }, 1, "first");
    const uint64_t submitted = f.io.submitted;
    emc_call * second = f.acquire(0, 0, { 2, 6 }, 1, "second");
    CHECK(first && second);
    CHECK_EQ(f.io.submitted, submitted);
    std::thread waiter([&] { f.compute(second, 0, 0); });
    while (!f.io.queue.empty()) {
        f.io.finish(f.io.queue.size() - 1);
    }
    waiter.join();
    f.compute(first, 0, 0);
    f.cache->check();
}

static void late_piece_keeps_slot() {
    fixture f(2);
    emc_call * gate = f.acquire(0, 0, { 0, 1 });
    f.io.finish_kind(0);
    f.compute(gate, 0, 0);
    CHECK(!f.io.queue.empty());
    // no pin is left, but up and down are on their way into the slots
    CHECK(!f.acquire(0, 0, { 4, 5 }, 1, "other"));
    emc_call * up = f.acquire(0, 1, { 0, 1 });
    CHECK(up);
    f.io.finish_all();
    f.compute(up, 0, 1);
    emc_call * other = f.acquire(0, 0, { 4, 5 }, 1, "other");
    CHECK(other);
    f.io.finish_all();
    f.compute(other, 0, 0);
    f.cache->check();
}

static void error_uses_mapping() {
    fixture f(4, 1 << 20);
    emc_call * call = f.acquire(0, 0, { 3, 7 });
    f.io.finish(0, EIO);   // gate of 3
    f.io.finish(0);        // gate of 7
    CHECK(!f.cache->wait(call, 0));
    CHECK(f.cache->wait(call, 1));
    f.io.finish_all();
    CHECK(f.cache->release(call));
    CHECK_EQ(f.cache->stats().errors, 1u);
    // up finds 7; 3 was not kept and is read again, all of it
    emc_call * up = f.acquire(0, 1, { 3, 7 });
    CHECK_EQ(f.io.queue.size(), 3u);
    f.io.finish_all();
    f.compute(up, 0, 1);
    f.cache->check();

    // all three kinds fail while a second call has joined
    emc_call * one = f.acquire(1, 0, { 5 }, 1, "one");
    emc_call * two = f.acquire(1, 0, { 5 }, 1, "two");
    while (!f.io.queue.empty()) {
        f.io.finish(0, EIO);
    }
    CHECK(!f.cache->wait(one, 0) && !f.cache->wait(two, 0));
    CHECK(f.cache->release(one));
    emc_call * again = f.acquire(1, 0, { 5 }, 1, "again");  // while the failed slot is still pinned
    f.io.finish_all();
    f.compute(again, 1, 0);
    CHECK(f.cache->release(two));
    CHECK_EQ(f.cache->stats().errors, 4u);
    f.cache->check();
}

static void shutdown_in_flight() {
    fixture f(4);
    emc_call * call = f.acquire(0, 0, { 3, 7 });
    f.io.finish(0);
    CHECK(f.cache->release(call));
    CHECK(!f.io.queue.empty());
    f.cache.reset();
    CHECK(f.io.queue.empty());
}

static void counting() {
    fixture f(4);
    f.event(0, { 0, 1 });            // 2 misses
    f.event(0, { 0, 2 });            // 1 hit, 1 miss
    f.event(1, { 0, 2 });            // another layer: 2 misses
    emc_stats s = f.cache->stats();
    CHECK_EQ(s.lookups[EMC_DECODE], 6u);
    CHECK_EQ(s.hits[EMC_DECODE], 1u);
    CHECK_EQ(s.misses[EMC_DECODE], 5u);
    CHECK_EQ(s.decode_tokens, 2u);   // layer 0 only
    CHECK_EQ(s.evictions, 0u);
    CHECK(!f.acquire(0, 0, { 0, 1, 2, 3, 4 }, 9));  // more experts than slots, and a prefill
    CHECK(!f.acquire(0, 1, { 0, 1, 2, 3, 4 }, 9));
    s = f.cache->stats();
    CHECK_EQ(s.bypass[EMC_PREFILL], 2u);
    CHECK_EQ(s.bypass[EMC_DECODE], 0u);
    CHECK_EQ(s.decode_tokens, 2u);
    f.event(0, { 0, 1, 2, 3 }, 9);   // a prefill that fits
    s = f.cache->stats();
    CHECK_EQ(s.hits[EMC_PREFILL], 3u);
    CHECK_EQ(s.misses[EMC_PREFILL], 1u);
    f.event(0, { 6 });               // evicts the least recent; all four are of one tick: the lowest slot
    CHECK_EQ(f.cache->stats().evictions, 1u);
    f.event(0, { 1, 2, 3, 6 });
    CHECK_EQ(f.cache->stats().misses[EMC_DECODE], 6u);
    f.cache->check();
}

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));
    order_is_a_permutation(random);
    readiness_read_once();
    executing_kind_first();
    waits_only_for_its_piece();
    slot_in_use_is_pinned();
    no_duplicate_read();
    late_piece_keeps_slot();
    error_uses_mapping();
    shutdown_in_flight();
    counting();
    return 0;
}
