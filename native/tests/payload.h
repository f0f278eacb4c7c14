// SPDX-License-Identifier: MIT
// Model files whose every byte is a function of (file, offset), so that any misplaced byte shows.
#pragma once

#include "../src/engine/cache.h"
#include "check.h"

#include <string>
#include <unistd.h>
#include <vector>

inline uint8_t payload_byte(int file, uint64_t offset) {
    uint64_t x = offset * 0x9E3779B97F4A7C15ull + (uint64_t) file * 0xD1B54A32D192ED03ull;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ull;
    return (uint8_t) (x >> 56);
}

inline void payload_fill(int file, uint64_t offset, void * buffer, uint64_t length) {
    for (uint64_t i = 0; i < length; ++i) {
        ((uint8_t *) buffer)[i] = payload_byte(file, offset + i);
    }
}

// Every byte of expert e's piece at data. stride apart from the first and last bytes, to be quick on large pieces.
inline void payload_check(const emc_extent & extent, int expert, const void * data, uint64_t step = 1) {
    const uint64_t begin = extent.offset + extent.stride * (uint64_t) expert;
    for (uint64_t i = 0; i < extent.stride; i = i + step < extent.stride || i == extent.stride - 1 ? i + step : extent.stride - 1) {
        CHECK_EQ((int) ((const uint8_t *) data)[i], (int) payload_byte(extent.file, begin + i));
    }
}

// A file in the current directory, removed at the end.
struct payload_file {
    payload_file(int index, uint64_t bytes) : path("payload-" + std::to_string(getpid()) + "-" + std::to_string(index)) {
        FILE * f = fopen(path.c_str(), "wb");
        CHECK(f);
        std::vector<uint8_t> block(1 << 16);
        for (uint64_t at = 0; at < bytes; at += block.size()) {
            const uint64_t n = bytes - at < block.size() ? bytes - at : block.size();
            payload_fill(index, at, block.data(), n);
            CHECK(fwrite(block.data(), 1, n, f) == n);
        }
        CHECK(fclose(f) == 0);
    }
    ~payload_file() { unlink(path.c_str()); }
    payload_file(const payload_file &) = delete;
    const std::string path;
};
