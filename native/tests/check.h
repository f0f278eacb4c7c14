// SPDX-License-Identifier: MIT
// CHECK holds in release builds too and says what it saw. Random tests take --seed N and print the one they use.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition);    \
            abort();                                                                  \
        }                                                                             \
    } while (0)

#define CHECK_EQ(a, b)                                                                                      \
    do {                                                                                                    \
        const auto va = (a);                                                                                \
        const auto vb = (b);                                                                                \
        if (!(va == vb)) {                                                                                  \
            std::cerr << __FILE__ << ":" << __LINE__ << ": " #a " is " << va << ", expected " << vb << "\n"; \
            abort();                                                                                        \
        }                                                                                                   \
    } while (0)

inline uint64_t test_seed(int argc, char ** argv) {
    uint64_t seed = (uint64_t) std::chrono::system_clock::now().time_since_epoch().count();
    for (int i = 1; i + 1 < argc; ++i) {
        if (strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(argv[i + 1], nullptr, 10);
        }
    }
    printf("--seed %llu\n", (unsigned long long) seed);
    fflush(stdout);
    return seed;
}

struct test_random {
    explicit test_random(uint64_t seed) : engine(seed) {}
    // from low to high, both included
    uint64_t in(uint64_t low, uint64_t high) { return low + engine() % (high - low + 1); }
    std::mt19937_64 engine;
};
