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
    explicit fixture(int n_slots, uint64_t read_bytes = 4096, int n_staging = 0, int n_guesses = 0) {
        emc_cache_options options;
        options.n_slots    = n_slots;
        options.n_staging  = n_staging;
        options.n_guesses  = n_guesses;
        options.on_trial   = false;
        options.read_bytes = read_bytes;
        options.policy     = "lru";  // whose victims a test can name
        std::string error;
        cache = emc_cache::make(layout(), options, std::make_unique<fake_reader>(io), nullptr, error);
        CHECK(cache);
    }
    emc_call * acquire(int layer, int kind, std::vector<int32_t> experts, int64_t rows = 1, const void * batch = "batch", int users = 1) {
        return cache->acquire(layer, kind, experts.data(), (int) experts.size(), rows, batch, users);
    }
    // The expert at a position, its bytes checked.
    int step(emc_call * call, int position) {
        const int    entry = cache->next(call, position);
        const void * data  = cache->data(call, entry);
        CHECK(data);
        payload_check(layout()[(size_t) call->layer].kinds[(size_t) call->kind], call->experts[(size_t) entry], data);
        return call->experts[(size_t) entry];
    }
    // Computes the call as its only thread would: every expert exactly once. Returns them in their order.
    std::vector<int> compute(emc_call * call) {
        std::vector<int> seen;
        for (int i = 0; i < call->n; ++i) {
            seen.push_back(step(call, i));
        }
        std::vector<int> sorted = seen;
        std::sort(sorted.begin(), sorted.end());
        CHECK(std::equal(sorted.begin(), sorted.end(), call->experts.begin()));
        CHECK(cache->release(call));
        return seen;
    }
    // From here on every read ends as soon as it is submitted.
    void drive_at_once() {
        io.finish_all();
        io.in_submit = [this] { io.finish_all(); };
    }
    // A whole layer with no read left behind.
    void event(int layer, const std::vector<int32_t> & experts, int64_t rows = 1) {
        for (int kind = 0; kind < 3; ++kind) {
            emc_call * call = acquire(layer, kind, experts, rows);
            CHECK(call);
            io.finish_all();
            compute(call);
        }
    }
    void foresee(int layer, std::vector<int32_t> experts) { cache->foresee(layer, experts.data(), (int) experts.size()); }
    // Experts of the reads that are under way, each once, in their order.
    std::vector<int> reading(int layer) const {
        std::vector<int> experts;
        for (const emc_read & read : io.queue) {
            const emc_extent extent = layout()[(size_t) layer].kinds[(size_t) read.kind];
            const int expert = (int) ((read.offset + read.length / 2 - extent.offset) / extent.stride);
            if (read.layer == layer && std::find(experts.begin(), experts.end(), expert) == experts.end()) {
                experts.push_back(expert);
            }
        }
        return experts;
    }
    fake_reader_state          io;
    std::unique_ptr<emc_cache> cache;
};

} // namespace

static void order_is_a_permutation(test_random & random) {
    for (int round = 0; round < 20000; ++round) {
        const size_t n = random.in(0, 16);
        std::vector<int32_t> pending;
        std::vector<int32_t> order;
        for (size_t i = 0; i < n; ++i) {
            pending.push_back((int32_t) i);
        }
        while (!pending.empty()) {
            const std::vector<int32_t> before = pending;
            const size_t decided = order.size();
            std::vector<int> asked(n, 0);
            // the state changes from question to question, as reads that end do: late experts become ready
            const size_t taken = emc_order_take_ready(pending, order, [&](int32_t i) { return asked[(size_t) i]++ > 0 || random.in(0, 1); });
            CHECK_EQ(order.size(), decided + taken);
            CHECK_EQ(pending.size(), before.size() - taken);
            for (const int32_t i : before) {
                CHECK_EQ(asked[(size_t) i], 1);
            }
            CHECK(std::is_sorted(order.begin() + (std::ptrdiff_t) decided, order.end()));
            CHECK(std::is_sorted(pending.begin(), pending.end()));
        }
        std::sort(order.begin(), order.end());
        for (size_t i = 0; i < n; ++i) {
            CHECK_EQ(order[i], (int32_t) i);
        }
    }
}

// Reads end at every possible point between the queueing of reads and the deciding of each position.
static void readiness_read_once() {
    for (size_t ended = 0; ended <= 40; ++ended) {
        fixture f(4);
        f.io.in_submit = [&] {
            for (size_t i = 0; i < ended && !f.io.queue.empty(); ++i) {
                f.io.finish(0);
            }
        };
        emc_call * call = f.acquire(0, 0, { 1, 3, 4, 6 });
        f.io.in_submit = nullptr;
        std::thread walker([&] { f.compute(call); });
        f.io.finish_all();
        walker.join();
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
        // the residents can be used while nothing has been read
        CHECK_EQ(g.step(call, 0), 2);
        CHECK_EQ(g.step(call, 1), 5);
        g.io.finish_all();
        g.compute(call);
        g.cache->check();
    }
}

// A thread that waits goes on with the first piece that lands, whatever else is still to come, and all walk alike.
static void first_to_land_is_next() {
    fixture f(4, 1 << 20);
    emc_call * call = f.acquire(0, 0, { 3, 5, 7 }, 1, "batch", 2);
    CHECK_EQ(f.io.queue.size(), 9u);  // one read a piece
    std::thread waiter([&] { CHECK_EQ(f.step(call, 0), 7); });
    f.io.finish(2);  // gate of expert 7, the last
    waiter.join();
    CHECK_EQ(f.io.queue.size(), 8u);
    f.io.finish(0);  // gate of 3: decided only when a thread comes to it
    f.io.finish(0);  // gate of 5
    CHECK_EQ(f.step(call, 1), 3);
    CHECK_EQ(f.step(call, 2), 5);
    for (const int position : { 0, 1, 2 }) {
        CHECK_EQ(f.step(call, position), std::vector<int>({ 7, 3, 5 })[(size_t) position]);
    }
    f.io.finish_all();
    CHECK(!f.cache->release(call));
    CHECK(f.cache->release(call));
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
    f.compute(first);
    emc_call * second = f.acquire(0, 0, { 4, 5 }, 1, "second");
    CHECK(second);
    f.io.finish_all();
    // 1 and 3 were in use, so 0 and 2 had to go
    f.compute(shared);
    f.compute(second);
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
    std::thread waiter([&] { f.compute(second); });
    while (!f.io.queue.empty()) {
        f.io.finish(f.io.queue.size() - 1);
    }
    waiter.join();
    f.compute(first);
    f.cache->check();
}

static void late_piece_keeps_slot() {
    fixture f(2);
    emc_call * gate = f.acquire(0, 0, { 0, 1 });
    f.io.finish_kind(0);
    f.compute(gate);
    CHECK(!f.io.queue.empty());
    // no pin is left, but up and down are on their way into the slots
    CHECK(!f.acquire(0, 0, { 4, 5 }, 1, "other"));
    emc_call * up = f.acquire(0, 1, { 0, 1 });
    CHECK(up);
    f.io.finish_all();
    f.compute(up);
    emc_call * other = f.acquire(0, 0, { 4, 5 }, 1, "other");
    CHECK(other);
    f.io.finish_all();
    f.compute(other);
    f.cache->check();
}

static void error_uses_mapping() {
    fixture f(4, 1 << 20);
    emc_call * call = f.acquire(0, 0, { 3, 7 });
    f.io.finish(0, EIO);   // gate of 3
    f.io.finish(0);        // gate of 7
    CHECK_EQ(f.cache->next(call, 0), 0);
    CHECK(!f.cache->data(call, 0));
    CHECK_EQ(f.step(call, 1), 7);
    f.io.finish_all();
    CHECK(f.cache->release(call));
    CHECK_EQ(f.cache->stats().errors, 1u);
    // up finds 7; 3 was not kept and is read again, all of it
    emc_call * up = f.acquire(0, 1, { 3, 7 });
    CHECK_EQ(f.io.queue.size(), 3u);
    f.io.finish_all();
    f.compute(up);
    f.cache->check();

    // all three kinds fail while a second call has joined
    emc_call * one = f.acquire(1, 0, { 5 }, 1, "one");
    emc_call * two = f.acquire(1, 0, { 5 }, 1, "two");
    while (!f.io.queue.empty()) {
        f.io.finish(0, EIO);
    }
    CHECK(f.cache->next(one, 0) == 0 && f.cache->next(two, 0) == 0);
    CHECK(!f.cache->data(one, 0) && !f.cache->data(two, 0));
    CHECK(f.cache->release(one));
    emc_call * again = f.acquire(1, 0, { 5 }, 1, "again");  // while the failed slot is still pinned
    f.io.finish_all();
    f.compute(again);
    CHECK(f.cache->release(two));
    CHECK_EQ(f.cache->stats().errors, 4u);
    f.cache->check();
}

static void shutdown_with_guesses_to_follow() {
    fixture f(4, 1 << 20, 0, 4);
    f.foresee(1, { 3, 4, 5 });
    CHECK((f.reading(1) == std::vector<int>{ 3 }));
    f.cache.reset();  // the read of 3 is cancelled, and none of 4 begins
    CHECK_EQ(f.io.submitted, 3u);
}

static void shutdown_in_flight() {
    fixture f(4);
    emc_call * call = f.acquire(0, 0, { 3, 7 });
    f.io.finish(0);
    CHECK(f.cache->release(call));
    CHECK(!f.io.queue.empty());
    f.cache.reset();
    CHECK(f.io.queue.empty());

    // with pieces of later products read ahead
    fixture g(4, 4096, 4);
    g.io.in_submit = [&] { while (g.io.queue.size() > 3) { g.io.finish(0); } };
    g.cache->release(g.acquire(0, 0, { 0, 1, 2, 3, 4, 5, 6, 7 }, 8));
    g.io.in_submit = nullptr;
    CHECK(!g.io.queue.empty());
    g.cache.reset();
    CHECK(g.io.queue.empty());
}

//
// streams: four slots that hold 0, 2, 4 and 6, and a prefill that uses all eight experts
//

static const std::vector<int32_t> ALL  = { 0, 1, 2, 3, 4, 5, 6, 7 };
static const std::vector<int32_t> EVEN = { 0, 2, 4, 6 };

static void prefill_streams() {
    for (const int n_staging : { 1, 2, 3, 4, 16 }) {
        fixture f(4, 1 << 20, n_staging);
        f.event(0, EVEN);
        f.event(1, EVEN);
        f.io.history.clear();
        f.drive_at_once();
        for (int layer = 0; layer < 2; ++layer) {
            for (int kind = 0; kind < 3; ++kind) {
                emc_call * call = f.acquire(layer, kind, ALL, 8);
                CHECK(call);
                const std::vector<int> seen = f.compute(call);
                if (kind == 0 && layer == 0) {
                    CHECK(seen == std::vector<int>({ 0, 2, 4, 6, 1, 3, 5, 7 }) || n_staging > 1);
                    CHECK(std::equal(seen.begin(), seen.begin() + 4, EVEN.begin()));
                }
            }
        }
        // every missing piece once, in the order of products, then of the file; none in vain
        CHECK_EQ(f.io.history.size(), 24u);
        for (size_t i = 0; i < 24; ++i) {
            CHECK_EQ(f.io.history[i].kind, (int) (i / 4 % 3));
            CHECK(i % 4 == 0 || f.io.history[i].offset > f.io.history[i - 1].offset);
        }
        f.event(0, EVEN);  // what decode had is still there
        const emc_stats s = f.cache->stats();
        CHECK_EQ(s.evictions, 0u);
        CHECK_EQ(s.bypass[EMC_PREFILL], 0u);
        CHECK_EQ(s.lookups[EMC_PREFILL], 16u);
        CHECK_EQ(s.hits[EMC_PREFILL], 8u);
        CHECK_EQ(s.streamed[EMC_PREFILL], 8u);
        CHECK_EQ(s.hits[EMC_DECODE], 4u);
        CHECK(s.ahead_queued > 0);
        CHECK_EQ(s.ahead_dropped, 0u);
        f.cache->check();
    }
}

static void prefill_fills_empty_slots() {
    fixture f(4, 1 << 20, 2);
    f.event(0, { 5 });
    f.drive_at_once();
    for (int kind = 0; kind < 3; ++kind) {
        f.compute(f.acquire(0, kind, ALL, 8));
    }
    emc_stats s = f.cache->stats();
    CHECK_EQ(s.evictions, 0u);
    CHECK_EQ(s.streamed[EMC_PREFILL], 4u);
    CHECK_EQ(s.misses[EMC_PREFILL], 7u);
    f.event(0, { 0, 1, 2, 5 });
    CHECK_EQ(f.cache->stats().hits[EMC_DECODE], 4u);
    // the gate of all experts comes before up and down of those that were put into slots
    const auto later = std::find_if(f.io.history.begin() + 3, f.io.history.end(), [](const emc_read & r) { return r.kind > 0; });
    CHECK_EQ(later - f.io.history.begin(), 3 + 7);
    f.cache->check();
}

// Where nearly all experts are used, the next layer's first product is read ahead; where few are, it is not.
static void next_layer_is_read_ahead() {
    for (const bool nearly_all : { true, false }) {
        fixture f(4, 1 << 20, 3);
        f.event(0, EVEN);
        f.event(1, EVEN);
        const uint64_t before = f.io.submitted;
        f.drive_at_once();
        for (int kind = 0; kind < 3; ++kind) {
            f.compute(f.acquire(0, kind, nearly_all ? ALL : std::vector<int32_t>({ 1, 2, 3 }), 8));
        }
        CHECK_EQ(f.io.submitted - before, nearly_all ? 12u + 3u : 6u);
        f.compute(f.acquire(1, 0, { 1, 2, 7 }, 8));
        const emc_stats s = f.cache->stats();
        CHECK_EQ(s.ahead_dropped, nearly_all ? 2u : 0u);  // 3 and 5 had been read too
        f.cache->check();
    }
}

static void slowest_keeps_buffer() {
    fixture f(4, 1 << 20, 2);
    f.event(0, EVEN);
    emc_call * call = f.acquire(0, 0, ALL, 8, "batch", 2);
    f.io.finish_all();
    // one thread is through all that has landed
    for (int i = 0; i < 6; ++i) {
        f.step(call, i);
    }
    CHECK(f.io.queue.empty());
    // the other uses the first buffer only now, and frees it by going on
    for (int i = 0; i < 5; ++i) {
        f.step(call, i);
        CHECK(f.io.queue.empty());
    }
    CHECK_EQ(f.step(call, 5), 3);
    CHECK_EQ(f.io.queue.size(), 1u);
    f.drive_at_once();
    CHECK_EQ(f.step(call, 6), 5);
    CHECK_EQ(f.step(call, 6), 5);
    CHECK_EQ(f.step(call, 7), 7);
    CHECK_EQ(f.step(call, 7), 7);
    CHECK(!f.cache->release(call));
    CHECK(f.cache->release(call));
    f.cache->check();
}

static void abandoned_batch() {
    fixture f(4, 1 << 20, 3);
    f.event(0, EVEN);
    f.event(1, EVEN);
    f.drive_at_once();
    f.compute(f.acquire(0, 0, ALL, 8));  // up of three experts has been read ahead, and never comes
    CHECK_EQ(f.cache->stats().ahead_queued, 3u);
    for (int kind = 0; kind < 3; ++kind) {
        f.compute(f.acquire(1, kind, ALL, 8, "other"));
    }
    CHECK_EQ(f.cache->stats().ahead_dropped, 3u);
    f.cache->check();
    // a call that is released before its pieces have landed leaves buffers that nobody may touch until then
    f.io.in_submit = nullptr;
    emc_call * call = f.acquire(0, 0, ALL, 8, "third");
    CHECK_EQ(f.io.queue.size(), 3u);
    CHECK(f.cache->release(call));
    emc_call * next = f.acquire(1, 1, { 1, 2 }, 8, "fourth");
    CHECK_EQ(f.io.queue.size(), 3u);
    f.drive_at_once();
    f.compute(next);
    f.cache->check();
}

static void late_read_keeps_buffer() {
    fixture f(4, 1 << 20, 2);
    f.event(0, EVEN);
    f.event(1, EVEN);
    f.drive_at_once();
    emc_call * gate = f.acquire(0, 0, ALL, 8);
    for (int i = 0; i < 8; ++i) {
        f.step(gate, i);
    }
    f.io.in_submit = nullptr;
    CHECK(f.cache->release(gate));
    CHECK(!f.io.queue.empty());  // guesses under way
    for (const emc_read & read : f.io.queue) {
        CHECK_EQ(read.kind, 1);
    }
    const size_t late = f.io.queue.size();
    emc_call * other = f.acquire(1, 0, ALL, 8, "other");
    for (size_t i = 0; i < late; ++i) {
        CHECK_EQ(f.io.queue[i].kind, 1);
    }
    CHECK(f.io.queue.size() <= 2u);
    f.drive_at_once();  // as each guess lands, its buffer takes a piece that is waited for
    f.compute(other);
    f.cache->check();
}

static void second_stream() {
    fixture f(4, 1 << 20, 2);
    f.event(0, EVEN);
    f.event(1, EVEN);
    f.drive_at_once();
    emc_call * first = f.acquire(0, 0, ALL, 8, "first");
    CHECK(!f.acquire(0, 0, ALL, 8, "second"));
    CHECK(!f.acquire(1, 2, ALL, 8, "second"));
    CHECK_EQ(f.cache->stats().bypass[EMC_PREFILL], 2u);
    // a decode call beside it has the slots: those in use by the stream are pinned
    emc_call * decode = f.acquire(1, 0, { 1, 2 }, 1, "third");
    CHECK(decode);
    f.compute(decode);
    CHECK(!f.acquire(0, 0, { 1, 2 }, 1, "third"));
    f.compute(first);
    f.compute(f.acquire(1, 0, ALL, 8, "second"));
    f.cache->check();
}

static void joined_slot_of_a_stream() {
    fixture f(2, 1 << 20, 2);
    emc_call * stream = f.acquire(0, 0, ALL, 8, "stream");  // fills slots with 0 and 1
    CHECK(std::all_of(f.io.queue.begin(), f.io.queue.end(), [](const emc_read & r) { return r.kind == 0; }));
    emc_call * joined = f.acquire(0, 1, { 0, 1 }, 1, "decode");
    CHECK(joined);
    std::thread waiter([&] { f.compute(joined); });
    f.io.finish_all();
    CHECK(f.cache->release(stream));  // here at the latest up and down are queued
    CHECK_EQ(std::count_if(f.io.queue.begin(), f.io.queue.end(), [](const emc_read & r) { return r.kind == 1 && r.layer == 0; }), 2);
    f.io.finish_all();
    waiter.join();
    f.io.finish_all();
    f.cache->check();
}

// A prompt leaves the experts of its last rows behind, latest first, in place of those that it does not use itself.
static void last_rows_get_slots() {
    const std::vector<int32_t> used = { 0, 1, 4, 5, 6 };
    const std::vector<int32_t> rows = { 0, 5, 4, 1, 0, 6 };  // three of two
    fixture f(4, 1 << 20, 2);
    f.event(0, { 0, 1, 2, 3 });
    f.drive_at_once();
    for (int kind = 0; kind < 3; ++kind) {
        f.compute(f.cache->acquire(0, kind, used.data(), 5, 8, "prompt", 1, kind == 0 ? emc_tail{ rows.data(), 3, 2 } : emc_tail()));
    }
    emc_stats stats = f.cache->stats();
    CHECK_EQ(stats.hits[EMC_PREFILL], 2u);
    CHECK_EQ(stats.misses[EMC_PREFILL], 3u);
    CHECK_EQ(stats.streamed[EMC_PREFILL], 1u);  // 5, whose row is the oldest
    CHECK_EQ(stats.evictions, 2u);
    f.event(0, { 0, 1, 4, 6 });
    stats = f.cache->stats();
    CHECK_EQ(stats.hits[EMC_DECODE], 4u);
    f.cache->check();
}

static void error_in_a_stream_uses_mapping() {
    fixture f(4, 1 << 20, 2);
    f.event(0, EVEN);
    emc_call * call = f.acquire(0, 0, ALL, 8);
    f.io.finish(1, EIO);  // gate of 3
    f.drive_at_once();
    int failed = 0;
    for (int i = 0; i < 8; ++i) {
        const int entry = f.cache->next(call, i);
        const bool mapping = !f.cache->data(call, entry);
        CHECK_EQ(mapping, call->experts[(size_t) entry] == 3);
        failed += mapping;
    }
    CHECK_EQ(failed, 1);
    CHECK(f.cache->release(call));
    CHECK_EQ(f.cache->stats().errors, 1u);
    f.compute(f.acquire(0, 1, ALL, 8));
    f.compute(f.acquire(0, 2, ALL, 8));
    f.cache->check();
}

// Guessed experts are read when nothing that was asked for is under way, best first, a few pieces at a time.
static void guesses_wait_for_what_is_asked_for() {
    fixture f(4, 1 << 20, 0, 4);
    CHECK_EQ(f.cache->guesses_wanted(), 4);
    f.event(1, { 5 });
    emc_call * call = f.acquire(0, 0, { 1 });
    f.foresee(1, { 5, 7, 2 });
    CHECK(f.reading(1).empty());              // expert 1 is on its way
    f.io.finish_kind(0);
    f.io.finish_kind(1);
    CHECK(f.reading(1).empty());
    f.io.finish(0);
    CHECK((f.reading(1) == std::vector<int>{ 7 }));  // 5 is there already
    f.compute(call);
    f.io.finish_all();                        // 7, and then 2
    CHECK_EQ(f.cache->stats().guessed, 2u);
    f.compute(f.acquire(1, 0, { 2, 5, 7 }));
    const emc_stats s = f.cache->stats();
    CHECK_EQ(s.guessed_used, 2u);
    CHECK_EQ(s.hits[EMC_DECODE], 3u);
    f.cache->check();
}

static void guess_is_joined() {
    fixture f(4, 1 << 20, 0, 4);
    f.foresee(1, { 3 });
    CHECK((f.reading(1) == std::vector<int>{ 3 }));
    const size_t submitted = f.io.submitted;
    emc_call * call = f.acquire(1, 0, { 3 });
    CHECK_EQ(f.io.submitted, submitted);
    f.foresee(0, { 6 });
    CHECK(f.reading(0).empty());              // what was guessed is now asked for: nothing else begins
    std::thread waiter([&] { f.compute(call); });
    f.io.finish_all();
    waiter.join();
    f.io.finish_all();
    f.cache->check();
}

// A guess neither takes the slot of another guess nor one in use; with no other slot it is not followed.
static void guess_spares_guessed_and_pinned() {
    fixture f(3, 1 << 20, 0, 4);
    f.event(1, { 0 });
    f.event(1, { 1 });
    f.event(1, { 2 });
    f.foresee(1, { 0, 1, 4 });                // the least recent, 0, is guessed itself
    f.io.finish_all();
    emc_call * call = f.acquire(1, 0, { 0, 1, 4 });
    CHECK_EQ(f.cache->stats().hits[EMC_DECODE], 3u);
    f.foresee(1, { 6 });                      // from another context
    CHECK(f.io.queue.empty());
    f.compute(call);
    f.cache->check();
}

static void wrong_guesses_lose_trust_and_are_counted() {
    fixture f(2, 1 << 20, 0, 1);
    f.drive_at_once();
    int followed = 0;
    for (int i = 0; i < 200; ++i) {
        const uint64_t before = f.cache->stats().guessed;
        f.foresee(1, { 2 + i % 6 });
        followed += f.cache->stats().guessed != before;
        for (int kind = 0; kind < 3; ++kind) {
            f.compute(f.acquire(1, kind, { i % 2 }));
        }
    }
    CHECK(followed > 5 && followed < 60);
    const emc_stats s = f.cache->stats();
    CHECK(s.guessed_used == 0 && s.guessed_lost + 1 >= s.guessed);
    f.cache->check();
}

static void failed_guess_is_asked_for_again() {
    fixture f(4, 1 << 20, 0, 4);
    f.foresee(1, { 3 });
    f.io.finish(0, EIO);
    f.io.finish_all();
    CHECK_EQ(f.cache->stats().guessed_lost, 1u);
    f.event(1, { 3 });
    CHECK_EQ(f.cache->stats().misses[EMC_DECODE], 1u);
    f.cache->check();
}

// In a prefill nothing is guessed, and what was guessed before it does not count.
static void prefill_ends_guessing() {
    fixture f(4, 1 << 20, 0, 4);
    emc_call * call = f.acquire(1, 0, { 1 });
    f.foresee(1, { 3 });
    f.event(1, { 1, 2 }, 9);
    f.io.finish_all();
    CHECK_EQ(f.cache->stats().guessed, 0u);
    f.compute(call);
    f.cache->check();
}

static void resize_in_use() {
    fixture f(4, 1 << 20);
    f.event(0, { 0, 1, 2, 3 });
    f.event(1, { 0, 1 });
    const uint64_t full = f.cache->touched_bytes();
    emc_call * call = f.acquire(0, 0, { 3 });       // in the last slot
    emc_call * load = f.acquire(1, 0, { 2, 3, 4 }, 1, "other");  // two on their way to empty slots
    f.cache->resize(2);
    CHECK_EQ(f.cache->n_slots(), 2);
    f.compute(call);                                // its bytes are still there
    f.drive_at_once();
    f.compute(load);
    f.cache->resize(2);                             // now nobody uses them
    CHECK(f.cache->touched_bytes() <= full * 4 / 6 + 1);
    f.cache->check();
    for (int round = 0; round < 3; ++round) {
        f.event(0, { 0, round + 2 });               // two slots serve two experts
        CHECK(!f.acquire(0, 0, { 0, 1, 2 }));       // and not three
    }
    f.cache->resize(4);
    f.event(0, { 0, 1, 2, 3 });
    f.cache->check();
}

// Twelve contexts whose graphs come and go: each batch counts once, however the products of all interleave.
static void batches_count_once(test_random & random) {
    fixture f(8, 1 << 20);
    f.drive_at_once();
    static const char identities[1024] = {};
    int next_identity = 12;
    struct context { const char * identity; int kind; };
    std::vector<context> contexts;
    for (int i = 0; i < 12; ++i) {
        contexts.push_back({ &identities[i], 0 });
    }
    uint64_t tokens = 0;
    for (int step = 0; step < 3000; ++step) {
        context & c = contexts[random.in(0, contexts.size() - 1)];
        f.compute(f.acquire(0, c.kind, { (int) random.in(0, 7) }, 1, c.identity));
        tokens += c.kind == 0;
        c.kind = (c.kind + 1) % 3;
        if (c.kind == 0 && random.in(0, 9) == 0) {
            c.identity = &identities[next_identity++ % 1024];  // its graph is made anew
        }
        CHECK_EQ(f.cache->stats().decode_tokens, tokens);
    }
    f.cache->check();
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
    first_to_land_is_next();
    slot_in_use_is_pinned();
    no_duplicate_read();
    late_piece_keeps_slot();
    error_uses_mapping();
    shutdown_in_flight();
    shutdown_with_guesses_to_follow();
    prefill_streams();
    prefill_fills_empty_slots();
    next_layer_is_read_ahead();
    slowest_keeps_buffer();
    abandoned_batch();
    late_read_keeps_buffer();
    second_stream();
    joined_slot_of_a_stream();
    last_rows_get_slots();
    error_in_a_stream_uses_mapping();
    guesses_wait_for_what_is_asked_for();
    guess_is_joined();
    guess_spares_guessed_and_pinned();
    wrong_guesses_lose_trust_and_are_counted();
    failed_guess_is_asked_for_again();
    prefill_ends_guessing();
    resize_in_use();
    batches_count_once(random);
    counting();
    return 0;
}
