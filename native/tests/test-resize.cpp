// SPDX-License-Identifier: MIT
// The size follows memory down at once and up slowly, stays within its bounds, and comes to rest.
#include "../src/core/resize.h"
#include "../src/engine/keeper.h"
#include "fake-reader.h"

#include <algorithm>
#include <fstream>
#include <unistd.h>

constexpr uint64_t MIB = 1 << 20;

static emc_size_view view(int slots) {
    emc_size_view v;
    v.slots         = slots;
    v.least         = 4;
    v.most          = 64;
    v.round_bytes   = 10 * MIB;
    v.reserve_bytes = 100 * MIB;
    v.pressure      = 0;
    return v;
}

static void decisions() {
    emc_size_view v = view(32);
    v.room_bytes = 90 * MIB;
    CHECK_EQ(emc_size_next(v), 32);   // less than the reserve, more than half of it
    v.room_bytes = 49 * MIB;
    CHECK_EQ(emc_size_next(v), 30);
    v.room_bytes = 115 * MIB;
    CHECK_EQ(emc_size_next(v), 33);   // room for one
    v.room_bytes = 1000 * MIB;
    CHECK_EQ(emc_size_next(v), 34);   // room for many: a step
    v.untouched_bytes = 900 * MIB;
    CHECK_EQ(emc_size_next(v), 32);   // it is as good as taken
    v.untouched_bytes = 0;
    v.pressure = 0.05;
    CHECK_EQ(emc_size_next(v), 32);   // neither calm nor short
    v.pressure = 0.10;
    CHECK_EQ(emc_size_next(v), 30);
    v.pressure = -1;
    CHECK_EQ(emc_size_next(v), 34);   // a kernel that does not say is not a kernel under pressure
    v.most = 20;
    CHECK_EQ(emc_size_next(v), 20);   // asked for less: at once
    v = view(4);
    CHECK_EQ(emc_size_next(v), 4);    // never below a cycle
}

// A machine on which others come and go: after a change of theirs the size comes to rest and leaves the reserve.
static void comes_to_rest(test_random & random) {
    for (int round = 0; round < 300; ++round) {
        emc_size_view v = view((int) random.in(4, 64));
        uint64_t total = 200 * MIB + random.in(0, 900) * MIB;  // for slots and what stays free
        for (int change = 0; change < 4; ++change) {
            int last = -1;
            int steps = 0;
            while (last != v.slots) {
                const uint64_t held = (uint64_t) v.slots * v.round_bytes;
                v.room_bytes = total > held ? total - held : 0;
                last = v.slots;
                v.slots = emc_size_next(v);
                CHECK(v.slots >= v.least && v.slots <= v.most);
                CHECK(++steps < 100);
            }
            CHECK(v.slots == v.least || v.room_bytes >= v.reserve_bytes / 2);
            CHECK(v.slots == v.most  || v.room_bytes < v.reserve_bytes + v.round_bytes);
            total = 200 * MIB + random.in(0, 900) * MIB;
        }
    }
}

// What was waited before the first look is another's; what is waited from then on fades within seconds.
static void pressure_is_of_now() {
    emc_pressure pressure;
    CHECK_EQ(pressure.update(-1, 0), -1.0);
    CHECK_EQ(pressure.update(5000, 1), 0.0);
    CHECK_EQ(pressure.update(5000, 2), 0.0);
    double share = 0;
    for (int second = 3; second < 33; ++second) {
        share = pressure.update(5000 + (second - 2) * 0.5, second);
    }
    CHECK(share > EMC_PRESSURE_HIGH && share > 0.45 && share < 0.5);
    for (int second = 33; second < 83; ++second) {
        share = pressure.update(5015, second);
    }
    CHECK(share < EMC_PRESSURE_LOW);
    CHECK(pressure.update(9000, 83) <= 0.1);                              // more than there was time for counts as all of it
    CHECK_EQ(pressure.update(1, 84), pressure.update(1, 84));             // a counter that went back, a clock that stands
    CHECK_EQ(pressure.update(-1, 85), -1.0);
    emc_pressure burst;
    burst.update(0, 0);
    CHECK(burst.update(0.5, 1) < EMC_PRESSURE_HIGH);                      // half a second once is no reason
}

// From the request file and from memory to the cache, and back when both are gone.
static void keeper_resizes_the_cache() {
    char name[] = "/tmp/edge-moe-keeper-XXXXXX";
    const std::string dir = mkdtemp(name);
    emc_layer layer;
    layer.n_experts = 64;
    layer.kinds.push_back({ 0, 0, 1 << 20 });
    const uint64_t round_bytes = emc_layer_slot_bytes(layer);
    emc_cache_options cache_options;
    cache_options.n_slots = 32;
    fake_reader_state io;
    std::string error;
    auto cache = emc_cache::make({ layer }, cache_options, std::make_unique<fake_reader>(io), nullptr, error);
    CHECK(cache);

    uint64_t room = 10000 * MIB;
    std::vector<std::string> said;
    emc_keeper_options options;
    options.least         = 4;
    options.most          = 32;
    options.round_bytes   = round_bytes;
    options.dense_bytes   = 50 * MIB;
    options.reserve_bytes = 100 * MIB;
    options.request_file  = dir + "/cache-1.want";
    options.room          = [&] { return room; };
    options.waited        = [] { return 0.0; };
    options.say           = [&](const std::string & line) { said.push_back(line); };
    const auto ask = [&](const std::string & text) { std::ofstream(options.request_file) << text; };
    {
        emc_keeper keeper(*cache, options);
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // its own thread has had a look
    }
    CHECK_EQ(cache->n_slots(), 32);
    // by hand from here on: the thread of this one is stopped before it looks
    const auto looks = [&](int n) {
        for (int i = 0; i < n; ++i) {
            emc_keeper(*cache, options).look();
        }
    };
    ask("10\n");
    looks(1);
    CHECK_EQ(cache->n_slots(), 9);  // a slot of a MiB is a page or two more
    CHECK(said.back().find("9 slots") != std::string::npos);
    ask("0");
    looks(1);
    CHECK_EQ(cache->n_slots(), 4);
    CHECK(said.back().find("one token cycle") != std::string::npos);
    for (const char * bad : { "", "ten", "-1", "1e3", "99999999999", " 8", "8 MiB", "\x1b[31m" }) {
        ask(bad);
        said.clear();
        looks(1);
        CHECK(said.size() == (*bad ? 1u : 0u) || said.size() == 1u);
        CHECK(said.empty() || said.back().find("it accepts a whole number of MiB") != std::string::npos);
        CHECK(said.empty() || said.back().find('\x1b') == std::string::npos);
    }
    unlink(options.request_file.c_str());
    CHECK_EQ(symlink("/dev/zero", options.request_file.c_str()), 0);
    looks(1);
    unlink(options.request_file.c_str());
    looks(40);
    CHECK_EQ(cache->n_slots(), 32);
    room = 60 * MIB;                // nearly all of it dense weights
    looks(40);
    CHECK_EQ(cache->n_slots(), 4);
    // another server comes, and gets its part at once; it goes, and what it had comes back
    room = 150 * MIB + (32 + 28) * round_bytes;  // the slots are not touched
    looks(40);
    CHECK_EQ(cache->n_slots(), 32);
    emc_peers_seen seen;
    uint64_t       told = 0;
    options.peers = [&](uint64_t bytes, uint64_t untouched) {
        told = bytes;
        CHECK_EQ(untouched, bytes);
        return seen;
    };
    looks(1);
    CHECK_EQ(told, 32 * round_bytes);
    CHECK_EQ(cache->n_slots(), 32);
    seen.others = 1;
    said.clear();
    looks(1);
    CHECK_EQ(cache->n_slots(), 30);  // half of 32 and of the 28 that are free
    CHECK(said.back().find("shares its memory with 1 other server: at most 30 slots") != std::string::npos);
    seen.bytes = 100 * round_bytes;
    looks(2);
    CHECK_EQ(cache->n_slots(), 32);  // the other has more than its part: this one may have all that it was made with
    seen = {};
    looks(40);
    CHECK_EQ(cache->n_slots(), 32);
    seen.mapped = 26 * round_bytes;  // a model that fits wants no part, but stays where it is
    said.clear();
    looks(40);
    CHECK_EQ(cache->n_slots(), 32);
    seen.mapped = (28 + 2) * round_bytes + 100 * MIB;
    looks(1);
    CHECK_EQ(cache->n_slots(), 30);
    CHECK(said.empty());
    room = 0;
    seen = {};
    seen.others = 9;
    looks(1);
    CHECK_EQ(cache->n_slots(), 4);   // never below a cycle
    cache->check();
    CHECK_EQ(rmdir(dir.c_str()), 0);
}

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));
    decisions();
    comes_to_rest(random);
    pressure_is_of_now();
    keeper_resizes_the_cache();
    return 0;
}
