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

static void equal_parts() {
    const emc_peers_seen nobody;
    CHECK_EQ(emc_fair_slots(nobody, 300 * MIB, 100 * MIB, 10 * MIB), 40);
    const emc_peers_seen one = { 1, 0 };
    CHECK_EQ(emc_fair_slots(one, 300 * MIB, 100 * MIB, 10 * MIB), 20);   // the other has nothing yet
    const emc_peers_seen two = { 2, 500 * MIB };
    CHECK_EQ(emc_fair_slots(two, 300 * MIB, 100 * MIB, 10 * MIB), 30);
    const emc_peers_seen lies = { 1, UINT64_MAX };
    CHECK(emc_fair_slots(lies, UINT64_MAX, UINT64_MAX, 1) > 0);          // stays the largest number
}

static void those_of_one_place() {
    const std::string dir = make_dir();
    emc_peers a(dir, 1);
    CHECK_EQ(a.exchange(10, "/slice").others, 0);
    {
        emc_peers b(dir, 2);
        emc_peers elsewhere(dir, 3);
        CHECK_EQ(b.exchange(32, "/slice").bytes, 10ull);
        CHECK_EQ(elsewhere.exchange(64, "").others, 0);
        const emc_peers_seen seen = a.exchange(7, "/slice");
        CHECK_EQ(seen.others, 1);
        CHECK_EQ(seen.bytes, 32ull);
        CHECK_EQ(b.exchange(32, "/slice").bytes, 7ull);   // a shorter line leaves nothing of the longer one
    }
    CHECK_EQ(a.exchange(7, "/slice").others, 0);          // gone, and so are their files
    CHECK_EQ(access((dir + "/cache-2.share").c_str(), F_OK), -1);
}

static void a_killed_process_is_none() {
    const std::string dir = make_dir();
    int ready[2];
    CHECK_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        emc_peers peers(dir, 77);
        peers.exchange(5, "");
        const char byte = 1;
        _exit(::write(ready[1], &byte, 1) == 1 && pause() ? 0 : 1);
    }
    char byte = 0;
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    emc_peers a(dir, 1);
    CHECK_EQ(a.exchange(0, "").bytes, 5ull);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    CHECK_EQ(access((dir + "/cache-77.share").c_str(), F_OK), 0);
    CHECK_EQ(a.exchange(0, "").others, 0);
    emc_peers again(dir, 77);                             // the number comes again
    again.exchange(6, "");
    CHECK_EQ(a.exchange(0, "").bytes, 6ull);
}

static void what_is_no_such_file() {
    const std::string dir = make_dir();
    emc_peers a(dir, 1);
    const std::vector<std::string> texts = { "", "\n", " \n", "5", "5 ", "-5 \n", "0x5 \n", "5 /slice", "99999999999999999999 \n", std::string(5000, '5'),
        std::string("5\0 \n", 4), "five \n" };
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
    write(dir + "/cache-5.shares", "5 \n");
    write(dir + "/other-5.share", "5 \n");
    write(dir + "/.share", "5 \n");
    CHECK_EQ(a.exchange(1, "").others, 0);
    for (const int fd : held) {
        close(fd);
    }
}

static void without_a_folder() {
    emc_peers none("", 1);
    CHECK_EQ(none.exchange(1, "").others, 0);
    emc_peers nowhere("/nonexistent", 1);
    CHECK_EQ(nowhere.exchange(1, "").others, 0);
}

// The keeper and the thread that computes the first batch ask at the same time.
static void from_two_threads() {
    const std::string dir = make_dir();
    emc_peers a(dir, 1);
    emc_peers b(dir, 2);
    b.exchange(9, "");
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&a, i] {
            for (int n = 0; n < 200; ++n) {
                CHECK_EQ(a.exchange(i ? 1000000 : 1, "").bytes, 9ull);
            }
        });
    }
    for (int n = 0; n < 200; ++n) {
        const uint64_t seen = b.exchange(9, "").bytes;
        CHECK(seen == 0 || seen == 1 || seen == 1000000);   // never a mixture; 0: between the line and its length
    }
    for (auto & thread : threads) {
        thread.join();
    }
}

int main() {
    equal_parts();
    those_of_one_place();
    a_killed_process_is_none();
    what_is_no_such_file();
    without_a_folder();
    from_two_threads();
    return 0;
}
