// SPDX-License-Identifier: MIT
// A reader that ends reads only when the test says so, in the order that the test names. No threads, no clock.
#pragma once

#include "../src/io/reader.h"
#include "payload.h"

#include <cerrno>
#include <functional>
#include <vector>

struct fake_reader_state {
    std::vector<emc_read> queue;      // submitted and not ended, in order
    std::vector<emc_read> history;    // all that were submitted
    emc_read_sink *       sink      = nullptr;
    uint64_t              submitted = 0;
    std::function<void()> in_submit;  // runs at the end of submit

    // End the i-th read of the queue. error != 0 leaves garbage in the buffer.
    void finish(size_t i, int error = 0) {
        CHECK(i < queue.size());
        const emc_read read = queue[i];
        queue.erase(queue.begin() + (std::ptrdiff_t) i);
        if (error) {
            memset(read.buffer, 0xEE, read.length);
        } else {
            payload_fill(read.file, read.offset, read.buffer, read.needed);
        }
        sink->read_done(read, error);
    }

    // End all queued reads of one slot's kind.
    void finish_kind(int kind, int error = 0) {
        for (size_t i = 0; i < queue.size();) {
            if (queue[i].kind == kind) {
                finish(i, error);
            } else {
                ++i;
            }
        }
    }

    void finish_all() {
        while (!queue.empty()) {
            finish(0);
        }
    }
};

class fake_reader : public emc_reader {
public:
    explicit fake_reader(fake_reader_state & state_) : state(state_) {}
    ~fake_reader() override {
        while (!state.queue.empty()) {
            state.finish(0, ECANCELED);
        }
    }
    void start(emc_read_sink & sink) override { state.sink = &sink; }
    void submit(const emc_read * reads, size_t n) override {
        state.queue.insert(state.queue.end(), reads, reads + n);
        state.history.insert(state.history.end(), reads, reads + n);
        state.submitted += n;
        if (state.in_submit) {
            state.in_submit();
        }
    }
    emc_reader_stats stats() const override { return {}; }
    const char * name() const override { return "fake"; }

private:
    fake_reader_state & state;
};
