// SPDX-License-Identifier: MIT
// Servers in one memory find one another while they live, and nothing else that lies in their folder.
#include "../src/core/resize.h"
#include "../src/io/peers.h"
#include "check.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

constexpr uint64_t MIB = 1 << 20;

static std::string make_dir() {
    char name[] = "/tmp/edge-moe-peers-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    return name;
}

static void write(const std::string & path, const std::string & text) {
    std::ofstream(path) << text;
}

static emc_claim claim(uint64_t bytes, uint64_t untouched = 0, uint64_t mapped = 0, const std::string & model = "1:1") {
    return { true, bytes, untouched, mapped, model };
}

static emc_peers_seen peers(int others, uint64_t bytes) {
    emc_peers_seen seen;
    seen.others = others;
    seen.bytes  = bytes;
    return seen;
}

static void equal_parts() {
    CHECK_EQ(emc_fair_slots(peers(0, 0),         300 * MIB, 100 * MIB, 0, 10 * MIB), 40);
    CHECK_EQ(emc_fair_slots(peers(1, 0),         300 * MIB, 150 * MIB, 50 * MIB, 10 * MIB), 20);  // the other has nothing yet
    CHECK_EQ(emc_fair_slots(peers(2, 500 * MIB), 300 * MIB, 100 * MIB, 0, 10 * MIB), 30);
    CHECK_EQ(emc_fair_slots(peers(1, 100 * MIB), 300 * MIB, 0, 200 * MIB, 10 * MIB), 10);         // there is less than nothing
    CHECK_EQ(emc_fair_slots(peers(1, 0),         300 * MIB, 0, 900 * MIB, 10 * MIB), 0);
    CHECK(emc_fair_slots(peers(1, UINT64_MAX), UINT64_MAX, UINT64_MAX, 0, 1) > 0);                // stays the largest number
    CHECK_EQ(emc_fair_slots(peers(1, 10), 10, 10, UINT64_MAX, 1), 0);
}

static void those_of_one_place() {
    const std::string dir = make_dir();
    emc_peers a(dir, 1);
    CHECK_EQ(a.exchange(claim(10), "/slice").others, 0);
    {
        emc_peers b(dir, 2);
        emc_peers elsewhere(dir, 3);
        CHECK_EQ(b.exchange(claim(32, 8), "/slice").bytes, 10ull);
        CHECK_EQ(elsewhere.exchange(claim(64), "").others, 0);
        const emc_peers_seen seen = a.exchange(claim(7), "/slice");
        CHECK_EQ(seen.others, 1);
        CHECK_EQ(seen.bytes, 32ull);
        CHECK_EQ(seen.untouched, 8ull);
        CHECK_EQ(b.exchange(claim(32), "/slice").bytes, 7ull);   // a shorter line leaves nothing of the longer one
    }
    CHECK_EQ(a.exchange(claim(7), "/slice").others, 0);          // gone, and so are their files
    CHECK_EQ(access((dir + "/cache-2.share").c_str(), F_OK), -1);
}

// What is mapped of one file is there once, however many servers say so; one that fits wants no part.
static void pages_in_common() {
    const std::string dir = make_dir();
    emc_peers a(dir, 1);
    emc_peers same(dir, 2);
    emc_peers other(dir, 3);
    emc_peers like_other(dir, 4);
    same.exchange(claim(0, 0, 100), "");
    other.exchange(claim(0, 0, 30, "1:2"), "");
    emc_claim fits = claim(0, 0, 700, "1:2");
    fits.shares = false;
    like_other.exchange(fits, "");
    const emc_peers_seen seen = a.exchange(claim(0, 0, 100), "");
    CHECK_EQ(seen.others, 2);
    CHECK_EQ(seen.mapped, 700ull);
}

static void a_killed_process_is_none() {
    const std::string dir = make_dir();
    int ready[2];
    CHECK_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        emc_peers peers(dir, 77);
        peers.exchange(claim(5), "");
        const char byte = 1;
        _exit(::write(ready[1], &byte, 1) == 1 && pause() ? 0 : 1);
    }
    char byte = 0;
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    emc_peers a(dir, 1);
    CHECK_EQ(a.exchange(claim(0), "").bytes, 5ull);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    CHECK_EQ(access((dir + "/cache-77.share").c_str(), F_OK), 0);
    CHECK_EQ(a.exchange(claim(0), "").others, 0);
    CHECK_EQ(access((dir + "/cache-77.share").c_str(), F_OK), -1);
    emc_peers again(dir, 77);                             // the number comes again
    again.exchange(claim(6), "");
    CHECK_EQ(a.exchange(claim(0), "").bytes, 6ull);
}

static void what_is_no_such_file() {
    const std::string dir = make_dir();
    emc_peers a(dir, 1);
    const std::vector<std::string> texts = { "", "\n", " \n", "1", "1 5 0 0 1:1", "1 5 0 0 1:1\n", "1 5 0 0\n", "1 5 0 /slice\n", "2 5 0 0 1:1 \n",
        "1 -5 0 0 1:1 \n", "1 0x5 0 0 1:1 \n", "1 5 0 99999999999999999999 1:1 \n", "1 " + std::string(5000, '5') + " 0 0 1:1 \n",
        std::string("1\0 5 0 0 1:1 \n", 13), "one 5 0 0 1:1 \n", "1 5\n0 0 1:1 \n", "1 5 0 0 " + std::string(5000, 'm') + " \n" };
    std::vector<int> held;
    for (size_t i = 0; i < texts.size(); ++i) {
        const std::string path = dir + "/cache-" + std::to_string(100 + i) + ".share";
        write(path, texts[i]);
        held.push_back(open(path.c_str(), O_RDONLY));
        CHECK_EQ(flock(held.back(), LOCK_EX), 0);         // its owner lives
    }
    CHECK_EQ(mkfifo((dir + "/cache-2.share").c_str(), 0600), 0);
    CHECK_EQ(mkdir((dir + "/cache-3.share").c_str(), 0700), 0);
    CHECK_EQ(symlink("cache-1.share", (dir + "/cache-4.share").c_str()), 0);
    write(dir + "/cache-5.shares", "1 5 0 0 1:1 \n");
    write(dir + "/other-5.share", "1 5 0 0 1:1 \n");
    write(dir + "/.share", "1 5 0 0 1:1 \n");
    CHECK_EQ(a.exchange(claim(1), "").others, 0);
    for (const int fd : held) {
        close(fd);
    }
}

static void without_a_folder() {
    emc_peers none("", 1);
    CHECK_EQ(none.exchange(claim(1), "").others, 0);
    emc_peers nowhere("/nonexistent", 1);
    CHECK_EQ(nowhere.exchange(claim(1), "").others, 0);
}

// The keeper and the thread that computes the first batch ask at the same time.
static void from_two_threads() {
    const std::string dir = make_dir();
    emc_peers a(dir, 1);
    emc_peers b(dir, 2);
    b.exchange(claim(9), "");
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&a, i] {
            for (int n = 0; n < 200; ++n) {
                CHECK_EQ(a.exchange(claim(i ? 1000000 : 1), "").bytes, 9ull);
            }
        });
    }
    for (int n = 0; n < 200; ++n) {
        const uint64_t seen = b.exchange(claim(9), "").bytes;
        CHECK(seen == 0 || seen == 1 || seen == 1000000);   // never a mixture; 0: half a line
    }
    for (auto & thread : threads) {
        thread.join();
    }
}

int main() {
    equal_parts();
    those_of_one_place();
    pages_in_common();
    a_killed_process_is_none();
    what_is_no_such_file();
    without_a_folder();
    from_two_threads();
    return 0;
}
