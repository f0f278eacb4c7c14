// SPDX-License-Identifier: MIT
// The two queues that io_uring shares with the kernel, by its bare system calls. For the one thread that opened it.
#pragma once

#include <cstddef>
#include <cstdint>

class emc_io_calls;
struct io_uring_sqe;
struct io_uring_cqe;

class emc_uring {
public:
    explicit emc_uring(emc_io_calls & calls_) : calls(calls_) {}
    ~emc_uring();
    emc_uring(const emc_uring &) = delete;
    emc_uring & operator=(const emc_uring &) = delete;

    // 0 or the errno: ENOSYS (a kernel without it), EPERM (seccomp, or kernel.io_uring_disabled), ENOMEM.
    int open(unsigned entries);

    // Queue a read for the next enter. REQUIRES: fewer than entries reads are queued or under way.
    void queue_read(int fd, void * buffer, uint64_t length, uint64_t offset, uint64_t tag);

    // Submit what is queued, then wait until a read has ended. 0 or the errno; then what was not submitted is still queued.
    int enter();

    // Take back a read that is still queued, the last one first; false if there is none.
    bool take_back(uint64_t & tag);

    // A read that has ended, with the bytes read or -errno; false if there is none.
    bool next(uint64_t & tag, int64_t & result);

private:
    emc_io_calls & calls;
    int            ring         = -1;
    char *         shared       = nullptr;
    size_t         shared_bytes = 0;
    io_uring_sqe * sqes         = nullptr;
    size_t         sqes_bytes   = 0;
    unsigned       n_queued     = 0;

    // in shared memory; the kernel moves sq_head and cq_tail, we the others
    unsigned *     sq_tail  = nullptr;
    unsigned       sq_mask  = 0;
    unsigned *     cq_head  = nullptr;
    unsigned *     cq_tail  = nullptr;
    unsigned       cq_mask  = 0;
    io_uring_cqe * cqes     = nullptr;
};
