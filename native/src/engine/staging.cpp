// SPDX-License-Identifier: MIT
#include "staging.h"

#include "../core/check.h"

emc_staging::emc_staging(int n, char * memory, uint64_t buffer_bytes_) : buffers(n), base(memory), buffer_bytes(buffer_bytes_) {}

int emc_staging::free_buffer() const {
    for (int i = 0; i < size(); ++i) {
        if (buffers[i].state == FREE) {
            return i;
        }
    }
    return EMC_NO_BUFFER;
}

int emc_staging::take(const emc_piece_key & key, emc_call * holder) {
    int i = free_buffer();
    for (int j = 0; j < size() && i == EMC_NO_BUFFER; ++j) {
        if (buffers[j].state == AHEAD && buffers[j].piece.left == 0) {
            drop(buffers[j]);
            i = j;
        }
    }
    if (i != EMC_NO_BUFFER) {
        buffers[i].state  = HELD;
        buffers[i].key    = key;
        buffers[i].holder = holder;
    }
    return i;
}

int emc_staging::take_ahead(const emc_piece_key & key) {
    const int i = free_buffer();
    if (i != EMC_NO_BUFFER) {
        buffers[i].state    = AHEAD;
        buffers[i].expected = true;
        buffers[i].key      = key;
    }
    return i;
}

int emc_staging::claim(const emc_piece_key & key, emc_call * holder) {
    for (int i = 0; i < size(); ++i) {
        buffer & b = buffers[i];
        if (b.state == AHEAD && b.expected && b.key == key) {
            b.state    = HELD;
            b.expected = false;
            b.holder   = holder;
            return i;
        }
    }
    return EMC_NO_BUFFER;
}

bool emc_staging::has(const emc_piece_key & key) const {
    for (const buffer & b : buffers) {
        if (b.state == AHEAD && b.expected && b.key == key) {
            return true;
        }
    }
    return false;
}

void emc_staging::let_go(int i) {
    buffer & b = buffers[i];
    EMC_CHECK(b.state == HELD);
    b.holder = nullptr;
    b.state  = b.piece.left == 0 ? FREE : AHEAD;
}

void emc_staging::drop(buffer & b) {
    EMC_CHECK(b.state == AHEAD && b.piece.left == 0);
    dropped   += b.expected;
    b.expected = false;
    b.state    = FREE;
}

uint64_t emc_staging::n_ahead() const {
    uint64_t n = 0;
    for (const buffer & b : buffers) {
        n += b.expected;
    }
    return n;
}

void emc_staging::check() const {
    for (const buffer & b : buffers) {
        EMC_CHECK(b.state != HELD && b.piece.left == 0 && !b.holder);
        EMC_CHECK(b.state == AHEAD || !b.expected);
    }
}
