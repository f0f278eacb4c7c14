// SPDX-License-Identifier: MIT
// Numbers that a file can hold and no model has. What is refused says what was seen; what is served has the bytes.
#include "../src/core/budget.h"
#include "../src/core/layout.h"
#include "../src/io/slab.h"
#include "fake-reader.h"

#include <cerrno>
#include <climits>
#include <sys/mman.h>

static constexpr uint64_t KIB = 1 << 10;
static constexpr uint64_t TOP = UINT64_MAX;

static void sizes_stay_large() {
    CHECK_EQ(emc_sum(TOP, 1), TOP);
    CHECK_EQ(emc_sum(TOP - 1, 1), TOP);
    CHECK_EQ(emc_sum(2, 3), 5ull);
    CHECK_EQ(emc_product(1ull << 32, 1ull << 32), TOP);
    CHECK_EQ(emc_product(1ull << 32, (1ull << 32) - 1), TOP - (1ull << 32) + 1);
    CHECK_EQ(emc_product(TOP, 0), 0ull);
    CHECK_EQ(emc_piece_bytes(TOP), TOP);
    CHECK(emc_piece_bytes(TOP - 2 * EMC_ALIGN) > TOP - 2 * EMC_ALIGN);

    emc_layer layer;
    layer.kinds = { { 0, 0, TOP / 2 }, { 0, 0, TOP / 2 }, { 0, 0, 100 } };
    CHECK_EQ(emc_layer_slot_bytes(layer), TOP);
}

static void extents() {
    const auto fault = [](uint64_t offset, uint64_t stride, int64_t n_experts, uint64_t file_bytes) {
        return emc_extent_fault({ 0, offset, stride }, n_experts, file_bytes);
    };
    CHECK_EQ(fault(100, 10, 8, 180), std::string());
    CHECK_EQ(fault(100, 10, 8, 179), std::string("8 experts of 10 bytes from byte 100 on do not end within the file's 179"));
    CHECK_EQ(fault(100, 0, 8, 180), std::string("experts of 0 bytes"));
    CHECK_EQ(fault(0, 10, 0, 180), std::string("0 experts, where the cache serves 1 to 65536"));
    CHECK_EQ(fault(0, 10, -1, 180), std::string("-1 experts, where the cache serves 1 to 65536"));
    CHECK_EQ(fault(0, 1, EMC_EXPERTS_MAX, TOP - 1), std::string());
    // 2^32 + 1 would be 1 in an int
    for (const int64_t n : { EMC_EXPERTS_MAX + 1, ((int64_t) 1 << 32) + 1, INT64_MAX, INT64_MIN }) {
        CHECK(fault(0, 1, n, TOP - 1).find(std::to_string(n) + " experts, ") == 0);
    }
    // products and ends that wrap to something small
    CHECK(!fault(0, 1ull << 60, 16, 180).empty());
    CHECK(!fault(TOP - 9, 10, 1, 180).empty());
    CHECK(!fault(TOP - 4096, 4096, 2, 1ull << 40).empty());
    CHECK(!fault(0, 10, 8, 0).empty());
}

static void names() {
    const auto layer = [](const char * name) {
        const char * rest = "nothing";
        const int    n    = emc_tensor_layer(name, &rest);
        CHECK_EQ(std::string(rest), std::string(n < 0 ? "nothing" : "x.weight"));
        return n;
    };
    CHECK_EQ(layer("blk.0.x.weight"), 0);
    CHECK_EQ(layer("blk.007.x.weight"), 7);
    CHECK_EQ(layer("blk.999999999.x.weight"), 999999999);
    for (const char * name : { "", "blk", "blk.", "blk..x.weight", "blk.-1.x.weight", "blk.+1.x.weight", "blk. 1.x.weight", "blk.1", "blk.1x.weight",
            "blk.0x1.x.weight", "blk.9999999999.x.weight", "blk.4294967297.x.weight", "blk.999999999999999999999.x.weight", "xblk.1.x.weight" }) {
        CHECK_EQ(layer(name), -1);
    }
}

// Whatever is asked: never more than that, and exactly what the slots and the buffers take.
static void budgets(uint64_t seed) {
    test_random random(seed);
    const auto number = [&random](int bits_most) {
        const uint64_t near = random.in(0, 3) == 0 ? TOP - random.in(0, 8192) : random.engine();
        const int      bits = (int) random.in(1, (uint64_t) bits_most);
        return near >> (64 - bits);
    };
    int served = 0;
    for (int i = 0; i < 200000; ++i) {
        emc_budget_request r;
        r.asked_bytes = number(64);
        r.round_bytes = number(64);
        r.piece_bytes = number(64);
        r.n_experts   = (int) number(17) - 2;
        r.n_used      = (int) number(random.in(0, 1) ? 4 : 31) - 2;
        r.automatic   = i % 2;
        const emc_budget b = emc_budget_fit(r);
        CHECK((b.slots == 0) == !b.reason.empty());
        if (b.slots == 0) {
            CHECK_EQ(b.delivered_bytes, 0ull);
            continue;
        }
        CHECK(r.n_used >= 1 && b.slots >= r.n_used && b.slots <= r.n_experts);
        const auto delivered = (unsigned __int128) r.round_bytes * (unsigned) b.slots + (unsigned __int128) r.piece_bytes * (unsigned) b.staging;
        CHECK(delivered == b.delivered_bytes && delivered <= r.asked_bytes);
        CHECK(b.cycle_bytes == (unsigned __int128) r.round_bytes * (unsigned) r.n_used);
        served += 1;
    }
    CHECK(served > 1000);

    for (int i = 0; i < 200000; ++i) {
        const uint64_t room  = number(64);
        const uint64_t dense = number(64);
        const uint64_t asked = emc_budget_auto(room, dense, number(64), number(64), number(64));
        CHECK((unsigned __int128) asked + dense <= room || asked == 0);
    }

    emc_budget_request r;
    r.asked_bytes = TOP;
    r.round_bytes = KIB;
    r.n_experts   = 8;
    for (const int n_used : { 0, -1, 9, INT_MAX, INT_MIN }) {
        r.n_used = n_used;
        CHECK_EQ(emc_budget_fit(r).reason, "the model says that a token uses " + std::to_string(n_used) + " of 8 experts");
    }
    r.n_used      = 2;
    r.round_bytes = TOP;
    CHECK(emc_budget_fit(r).reason.find("is below one token cycle (17592186044415 MiB)") != std::string::npos);
}

static std::unique_ptr<emc_cache> cache_of(const std::vector<emc_layer> & layers, int n_slots, fake_reader_state & io, std::string & error) {
    emc_cache_options options;
    options.n_slots = n_slots;
    return emc_cache::make(layers, options, std::make_unique<fake_reader>(io), nullptr, error);
}

static void slabs() {
    for (const uint64_t bytes : { TOP, TOP - 4095, TOP - 4096, TOP - 2048 * KIB, TOP / 2 }) {
        errno = 0;
        CHECK(!emc_slab_map(bytes));
        CHECK_EQ(errno, ENOMEM);
    }
    // slots that are too large one by one, and only all together
    for (const uint64_t stride : { TOP, TOP / 2, TOP / 24, TOP / 16 }) {
        emc_layer layer;
        layer.n_experts = 8;
        layer.kinds     = { { 0, 0, stride }, { 0, 0, stride }, { 0, 0, stride } };
        fake_reader_state io;
        std::string       error;
        CHECK(!cache_of({ layer, layer }, 4, io, error));
        CHECK(error.find("cannot map ") == 0);
    }
}

static void thousands_of_layers() {
    std::vector<emc_layer> layers(5000);
    uint64_t at = 7;
    for (emc_layer & layer : layers) {
        layer.n_experts = 2;
        layer.kinds     = { { 0, at, 1 }, { 0, at + 2, 3 } };
        at += 8;
    }
    fake_reader_state io;
    std::string       error;
    const auto cache = cache_of(layers, 1, io, error);
    CHECK(cache);
    for (const int layer : { 0, 1, 2500, 4998, 4999 }) {
        for (const int32_t expert : { 1, 0 }) {
            for (int kind = 0; kind < 2; ++kind) {
                emc_call * call = cache->acquire(layer, kind, &expert, 1, 1, "batch", 1);
                CHECK(call);
                io.finish_all();
                CHECK_EQ(cache->next(call, 0), 0);
                payload_check(layers[(size_t) layer].kinds[(size_t) kind], expert, cache->data(call, 0));
                CHECK(cache->release(call));
            }
        }
    }
    CHECK_EQ(cache->stats().evictions, 5ull);
    cache->check();
}

int main(int argc, char ** argv) {
    sizes_stay_large();
    extents();
    names();
    budgets(test_seed(argc, argv));
    slabs();
    thousands_of_layers();
    return 0;
}
