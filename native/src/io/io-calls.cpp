// SPDX-License-Identifier: MIT
#include "io-calls.h"

#include <cerrno>
#include <sys/syscall.h>
#include <unistd.h>

int emc_io_calls::uring_setup(unsigned entries, io_uring_params * params) {
    const long ring = syscall(__NR_io_uring_setup, entries, params);
    return ring < 0 ? -errno : (int) ring;
}

int emc_io_calls::uring_enter(int ring, unsigned submit, unsigned wait_for, unsigned flags) {
    const long n = syscall(__NR_io_uring_enter, ring, submit, wait_for, flags, nullptr, 0);
    return n < 0 ? -errno : (int) n;
}

int64_t emc_io_calls::read_result(int64_t result, void *, uint64_t, uint64_t) {
    return result;
}
