// SPDX-License-Identifier: MIT
#include "../src/core/budget.h"
#include "../src/io/window.h"
#include "check.h"

static void check_piece(uint64_t offset, uint64_t length, uint64_t largest) {
    const emc_window w = emc_window_of(offset, length);
    CHECK(w.begin % EMC_ALIGN == 0 && w.end % EMC_ALIGN == 0);
    CHECK(w.begin <= offset && offset - w.begin < EMC_ALIGN);
    CHECK(w.end >= offset + length && w.end - (offset + length) < EMC_ALIGN);
    CHECK_EQ(w.lead, offset - w.begin);
    CHECK(w.end - w.begin <= emc_piece_bytes(length));  // it fits into its part of the slot

    uint64_t at = w.begin;
    uint64_t needed = 0;
    const uint64_t n = emc_window_cuts(w, largest);
    for (uint64_t i = 0; i < n; ++i) {
        const emc_cut cut = emc_window_cut(w, length, largest, i);
        CHECK_EQ(cut.offset, at);  // no gap, no overlap
        CHECK(cut.length % EMC_ALIGN == 0 && cut.length > 0 && cut.length <= largest);
        CHECK(cut.needed > 0 && cut.needed <= cut.length);
        CHECK(cut.needed == cut.length || i + 1 == n);
        at += cut.length;
        needed += cut.needed;
    }
    CHECK_EQ(at, w.end);
    CHECK_EQ(needed, w.lead + length);  // to the piece's last byte: a file may end there
}

int main(int argc, char ** argv) {
    test_random random(test_seed(argc, argv));

    // a piece that is no multiple of a page, at an offset where "piece + 4096" would be too small
    CHECK_EQ(emc_piece_bytes(4406400), 4407296ull + 4096);
    const emc_window w = emc_window_of(4064, 4406400);
    CHECK(w.end - w.begin > 4406400 + 4096 - EMC_ALIGN);
    check_piece(4064, 4406400, 1 << 20);
    CHECK_EQ(emc_piece_bytes(4096), 8192ull);
    CHECK_EQ(emc_piece_bytes(1), 8192ull);

    for (uint64_t offset = 0; offset < 2 * EMC_ALIGN; offset += 32) {
        for (const uint64_t length : { 1ull, 32ull, 4095ull, 4096ull, 4097ull, 8160ull, 12288ull }) {
            check_piece(offset, length, EMC_ALIGN);
            check_piece(offset, length, 1 << 20);
        }
    }
    for (int i = 0; i < 200000; ++i) {
        check_piece(random.in(0, 1ull << 40) * 32, random.in(1, 1 << 23), EMC_ALIGN * random.in(1, 1024));
    }
    return 0;
}
