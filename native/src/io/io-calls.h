// SPDX-License-Identifier: MIT
// What readers ask of the system, in one place, so that a test can make it short, slow or broken.
#pragma once

#include <cstdint>

struct io_uring_params;

class emc_io_calls {
public:
    virtual ~emc_io_calls() = default;

    // As io_uring_setup(2) and io_uring_enter(2), but failures are returned: -errno.
    virtual int uring_setup(unsigned entries, io_uring_params * params);
    virtual int uring_enter(int ring, unsigned submit, unsigned wait_for, unsigned flags);

    // Every result of the system for a read passes through here: bytes that are now in the buffer, or -errno.
    // What is returned is what the reader sees.
    virtual int64_t read_result(int64_t result, void * buffer, uint64_t length, uint64_t offset);
};
