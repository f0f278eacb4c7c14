// SPDX-License-Identifier: MIT
#include "../src/core/budget.h"
#include "../src/io/memory-room.h"
#include "check.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

static constexpr uint64_t MIB = 1 << 20;

static void fit() {
    // 16 layers of 768 KiB slots: a round is 12 MiB, a cycle of 4 experts 48 MiB
    emc_budget_request r;
    r.round_bytes = 12 * MIB;
    r.n_used      = 4;
    r.n_experts   = 64;

    r.asked_bytes = 256 * MIB;
    emc_budget b = emc_budget_fit(r);
    CHECK_EQ(b.slots, 21);
    CHECK_EQ(b.delivered_bytes, 252 * MIB);
    CHECK_EQ(b.cycle_bytes, 48 * MIB);
    CHECK(b.cycles == 5.25);

    r.asked_bytes = 48 * MIB;
    CHECK_EQ(emc_budget_fit(r).slots, 4);  // exactly one cycle is enough

    r.asked_bytes = 48 * MIB - 1;
    b = emc_budget_fit(r);
    CHECK_EQ(b.slots, 0);
    CHECK_EQ(b.delivered_bytes, 0ull);
    CHECK_EQ(b.reason, std::string("47 MiB asked is below one token cycle (48 MiB)"));

    r.asked_bytes = 100000 * MIB;  // more than all experts
    CHECK_EQ(emc_budget_fit(r).slots, 64);

    r.automatic = true;
    r.asked_bytes = 0;
    CHECK(emc_budget_fit(r).reason.find("auto found room for 0 MiB") == 0);

    r.round_bytes = 0;
    CHECK_EQ(emc_budget_fit(r).reason, std::string("the model has no experts"));
}

static void automatic() {
    const uint64_t all = 100000 * MIB;
    // 4096 less 1000 dense less the eighth of 4096 (512) is 2584: 53 whole cycles of 48
    CHECK_EQ(emc_budget_auto(4096 * MIB, 1000 * MIB, 48 * MIB, all, 0), 53 * 48 * MIB);
    CHECK_EQ(emc_budget_auto(1024 * MIB, 500 * MIB, 48 * MIB, all, 0), 5 * 48 * MIB);  // reserve is at least 256
    CHECK_EQ(emc_budget_auto(1024 * MIB, 2000 * MIB, 48 * MIB, all, 0), 0ull);
    CHECK_EQ(emc_budget_auto(0, 0, 48 * MIB, all, 0), 0ull);
    CHECK_EQ(emc_budget_auto(100000 * MIB, 0, 48 * MIB, 960 * MIB, 0), 960 * MIB);
    // staging comes on top of whole cycles: 2584 less 10 is still 53 of them
    CHECK_EQ(emc_budget_auto(4096 * MIB, 1000 * MIB, 48 * MIB, all, 10 * MIB), (53 * 48 + 10) * MIB);
    CHECK_EQ(emc_budget_auto(4096 * MIB, 1000 * MIB, 48 * MIB, all, 100 * MIB), (51 * 48 + 100) * MIB);
    CHECK_EQ(emc_budget_auto(1024 * MIB, 2000 * MIB, 48 * MIB, all, 10 * MIB), 0ull);

    CHECK(emc_budget_fits(1060 * MIB, 100 * MIB, 1000 * MIB) && !emc_budget_fits(1059 * MIB, 100 * MIB, 1000 * MIB));
    CHECK(!emc_budget_fits(50 * MIB, 100 * MIB, 0) && !emc_budget_fits(0, 0, 1));
}

static void staging() {
    // rounds of 12 MiB, a cycle of four of them, sixteen buffers of 256 KiB: 4 MiB
    emc_budget_request r;
    r.round_bytes = 12 * MIB;
    r.n_used      = 4;
    r.n_experts   = 64;
    r.piece_bytes = MIB / 4;
    const auto fit_into = [&](uint64_t bytes) {
        r.asked_bytes = bytes;
        const emc_budget b = emc_budget_fit(r);
        CHECK(b.delivered_bytes <= bytes);
        CHECK_EQ(b.delivered_bytes, (uint64_t) b.slots * r.round_bytes + (uint64_t) b.staging * r.piece_bytes);
        return b;
    };
    CHECK_EQ(fit_into(256 * MIB).slots, 21);  // what 21 rounds leave over is just enough
    CHECK_EQ(fit_into(256 * MIB).staging, EMC_STAGING);
    CHECK_EQ(fit_into(255 * MIB).slots, 20);  // a round gives way
    CHECK_EQ(fit_into(255 * MIB).staging, EMC_STAGING);
    CHECK_EQ(fit_into(48 * MIB).slots, 4);    // but never the last cycle
    CHECK_EQ(fit_into(48 * MIB).staging, 0);
    CHECK_EQ(fit_into(49 * MIB).staging, EMC_STAGING_LEAST);
    CHECK_EQ(fit_into(49 * MIB - 1).staging, 0);
    CHECK_EQ(fit_into(64 * 12 * MIB).staging, 0);  // every expert has a slot
    CHECK_EQ(fit_into(64 * 12 * MIB).slots, 64);
    // buffers larger than a round take as many as it needs
    r.piece_bytes = MIB;
    CHECK_EQ(fit_into(252 * MIB).slots, 19);
}

static void put(const std::string & path, const std::string & text) {
    for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
        mkdir(path.substr(0, at).c_str(), 0755);
    }
    std::ofstream(path) << text;
}

static void room() {
    char name[] = "/tmp/edge-moe-room-XXXXXX";
    const std::string root = mkdtemp(name);
    CHECK_EQ(emc_memory_room(root), 0ull);

    put(root + "/proc/meminfo", "MemTotal:  8000000 kB\nMemFree: 100 kB\nMemAvailable:  4194304 kB\n");
    CHECK_EQ(emc_memory_room(root), 4096 * MIB);
    CHECK_EQ(emc_memory_place(root), std::string());

    // version 2: the unit has no limit, its slice has one; file pages of the slice can be taken back
    put(root + "/proc/self/cgroup", "0::/edge.slice/server.service\n");
    put(root + "/sys/fs/cgroup/edge.slice/server.service/memory.max", "max\n");
    put(root + "/sys/fs/cgroup/edge.slice/server.service/memory.current", "1000\n");
    CHECK_EQ(emc_memory_room(root), 4096 * MIB);
    put(root + "/sys/fs/cgroup/edge.slice/memory.max", std::to_string(1000 * MIB) + "\n");
    put(root + "/sys/fs/cgroup/edge.slice/memory.current", std::to_string(900 * MIB) + "\n");
    put(root + "/sys/fs/cgroup/edge.slice/memory.stat",
        "anon 5\nactive_file " + std::to_string(300 * MIB) + "\ninactive_file " + std::to_string(200 * MIB) + "\n");
    CHECK_EQ(emc_memory_room(root), 600 * MIB);
    CHECK_EQ(emc_memory_place(root), root + "/sys/fs/cgroup/edge.slice");
    put(root + "/sys/fs/cgroup/edge.slice/memory.high", std::to_string(700 * MIB) + "\n");
    CHECK_EQ(emc_memory_room(root), 300 * MIB);
    put(root + "/sys/fs/cgroup/edge.slice/memory.high", std::to_string(100 * MIB) + "\n");
    CHECK_EQ(emc_memory_room(root), 0ull);  // over it already

    // version 1
    put(root + "/proc/self/cgroup", "4:cpu,cpuacct:/\n3:memory:/box\n");
    put(root + "/sys/fs/cgroup/memory/box/memory.limit_in_bytes", std::to_string(800 * MIB) + "\n");
    put(root + "/sys/fs/cgroup/memory/box/memory.usage_in_bytes", std::to_string(500 * MIB) + "\n");
    put(root + "/sys/fs/cgroup/memory/box/memory.stat",
        "total_active_file " + std::to_string(100 * MIB) + "\ntotal_inactive_file " + std::to_string(50 * MIB) + "\n");
    CHECK_EQ(emc_memory_room(root), 450 * MIB);
    CHECK_EQ(emc_memory_place(root), root + "/sys/fs/cgroup/memory/box");

    // waiting: none known, the machine's, the group's own, nonsense
    CHECK_EQ(emc_memory_waited(root), -1.0);
    put(root + "/proc/pressure/memory", "some avg10=2.50 avg60=0.00 avg300=0.00 total=12500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n");
    CHECK_EQ(emc_memory_waited(root), 12.5);
    put(root + "/proc/self/cgroup", "0::/edge.slice/server.service\n");
    put(root + "/sys/fs/cgroup/edge.slice/server.service/memory.pressure", "some avg10=50.00 avg60=1.00 avg300=0.00 total=250000\n");
    CHECK_EQ(emc_memory_waited(root), 0.25);
    for (const char * text : { "", "some", "some avg10=", "some avg10=1.00 avg60=1.00 avg300=0.00 total=", "full avg10=3 avg60=0 avg300=0 total=7",
            "some avg10=1.00 avg60=1.00 avg300=0.00 total=x" }) {
        put(root + "/sys/fs/cgroup/edge.slice/server.service/memory.pressure", text);
        CHECK_EQ(emc_memory_waited(root), 12.5);
    }

    CHECK_EQ(system(("rm -r " + root).c_str()), 0);
    CHECK(emc_memory_room("") > 0);  // this machine
}

int main() {
    fit();
    automatic();
    staging();
    room();
    return 0;
}
