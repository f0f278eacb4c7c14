// SPDX-License-Identifier: MIT
// The buffers that pieces without a slot stream through. Bookkeeping only; the caller holds the cache's mutex.
//
// States of a buffer and what moves it:
//
//   from    to      by          condition
//   FREE    HELD    take        a call asks for the piece
//   FREE    AHEAD   take_ahead  it is expected to be asked for; it may land before, or after, that
//   AHEAD   HELD    claim       a call asks for what was read ahead
//   AHEAD   HELD    take        its read has ended, nothing is FREE and a call needs room: what was expected did not come
//   AHEAD   FREE    drop        its read has ended
//   HELD    FREE    let_go      its read has ended
//   HELD    AHEAD   let_go      its read has not ended: nobody may touch the buffer until then
//
// So a buffer under a read is never given to another piece, and one that a call holds is never taken from it.
//
// Costs: a scan over the buffers (tens) for each piece that streams.
#pragma once

#include "../core/types.h"

#include <vector>

struct emc_call;

// The readiness of one piece, in a slot or in staging. The mutex guards it; but once left is 0 it stays as it is
// while somebody holds the slot or the buffer, so a thread that was told so may read data and failed without it.
struct emc_piece {
    int32_t left   = 0;        // reads that have not ended
    bool    failed = false;
    char *  data   = nullptr;
};

// Which piece: expert e's weights for one product of a layer.
struct emc_piece_key {
    int layer  = 0;
    int kind   = 0;
    int expert = 0;

    bool operator==(const emc_piece_key & o) const { return layer == o.layer && kind == o.kind && expert == o.expert; }
};

constexpr int EMC_NO_BUFFER = -1;

class emc_staging {
public:
    emc_staging(int n, char * memory, uint64_t buffer_bytes);

    // EMC_NO_BUFFER: there is none. From take and take_ahead the caller queues the reads.
    int take(const emc_piece_key & key, emc_call * holder);
    int take_ahead(const emc_piece_key & key);

    // The buffer of a piece that was read ahead, or EMC_NO_BUFFER.
    int claim(const emc_piece_key & key, emc_call * holder);

    bool has(const emc_piece_key & key) const;

    // What was read ahead and is not wanted any more (unless a read is under way: then later, or by take).
    template <typename is_wanted_fn> void drop_unless(is_wanted_fn is_wanted) {
        for (buffer & b : buffers) {
            if (b.state == AHEAD && b.piece.left == 0 && !is_wanted(b.key)) {
                drop(b);
            }
        }
    }

    void let_go(int i);

    int         size()            const { return (int) buffers.size(); }
    emc_piece & piece(int i)            { return buffers[i].piece; }
    emc_call *  holder(int i)     const { return buffers[i].holder; }
    char *      memory(int i)     const { return base + buffer_bytes * (uint64_t) i; }
    uint64_t    n_ahead()         const;  // read ahead, and neither claimed nor dropped
    uint64_t    n_dropped()       const { return dropped; }

    // Aborts if a buffer is held or under a read. For shutdown and tests.
    void check() const;

private:
    enum buffer_state : uint8_t { FREE, AHEAD, HELD };

    struct buffer {
        buffer_state  state    = FREE;
        bool          expected = false;  // AHEAD as a guess, not as what a call left behind
        emc_piece_key key;
        emc_call *    holder   = nullptr;
        emc_piece     piece;
    };

    int  free_buffer() const;
    void drop(buffer & b);

    std::vector<buffer> buffers;
    char * const        base;
    const uint64_t      buffer_bytes;
    uint64_t            dropped = 0;
};
