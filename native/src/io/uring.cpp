// SPDX-License-Identifier: MIT
#include "uring.h"

#include "io-calls.h"

#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <unistd.h>

// Headers of older kernels lack these. Completions are finished by the thread that waits for them, not by an interrupt
// of it: kernel 6.1 and later.
static constexpr unsigned SINGLE_ISSUER = 1u << 12;
static constexpr unsigned DEFER_TASKRUN = 1u << 13;

emc_uring::~emc_uring() {
    if (sqes) {
        munmap(sqes, sqes_bytes);
    }
    if (shared) {
        munmap(shared, shared_bytes);
    }
    if (ring >= 0) {
        close(ring);
    }
}

int emc_uring::open(unsigned entries) {
    io_uring_params params;
    for (const unsigned flags : { SINGLE_ISSUER | DEFER_TASKRUN, 0u }) {
        memset(&params, 0, sizeof(params));
        params.flags = flags;
        ring = calls.uring_setup(entries, &params);
        if (ring != -EINVAL) {
            break;
        }
    }
    if (ring < 0) {
        return -ring;
    }
    if (!(params.features & IORING_FEAT_SINGLE_MMAP)) {
        return ENOSYS;  // before 5.4, and without plain reads before 5.6
    }

    const size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    const size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    const auto map = [this](size_t bytes, uint64_t offset) -> void * {
        void * memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, (off_t) offset);
        return memory == MAP_FAILED ? nullptr : memory;
    };
    shared_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    shared       = (char *) map(shared_bytes, IORING_OFF_SQ_RING);
    sqes_bytes   = params.sq_entries * sizeof(io_uring_sqe);
    sqes         = (io_uring_sqe *) map(sqes_bytes, IORING_OFF_SQES);
    if (!shared || !sqes) {
        return errno;
    }
    sq_tail = (unsigned *) (shared + params.sq_off.tail);
    sq_mask = params.sq_entries - 1;
    cq_head = (unsigned *) (shared + params.cq_off.head);
    cq_tail = (unsigned *) (shared + params.cq_off.tail);
    cq_mask = params.cq_entries - 1;
    cqes    = (io_uring_cqe *) (shared + params.cq_off.cqes);

    // entries are used in the order of their places, so this table never changes
    unsigned * places = (unsigned *) (shared + params.sq_off.array);
    for (unsigned i = 0; i < params.sq_entries; ++i) {
        places[i] = i;
    }
    return 0;
}

void emc_uring::queue_read(int fd, void * buffer, uint64_t length, uint64_t offset, uint64_t tag) {
    const unsigned tail = *sq_tail;
    io_uring_sqe & sqe  = sqes[tail & sq_mask];
    memset(&sqe, 0, sizeof(sqe));
    sqe.opcode    = IORING_OP_READ;
    sqe.fd        = fd;
    sqe.addr      = (uint64_t) (uintptr_t) buffer;
    sqe.len       = (unsigned) length;
    sqe.off       = offset;
    sqe.user_data = tag;
    __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
    n_queued += 1;
}

int emc_uring::enter() {
    const int n = calls.uring_enter(ring, n_queued, 1, IORING_ENTER_GETEVENTS);
    if (n < 0) {
        return -n;
    }
    n_queued -= (unsigned) n;
    return 0;
}

bool emc_uring::take_back(uint64_t & tag) {
    if (n_queued == 0) {
        return false;
    }
    n_queued -= 1;
    const unsigned tail = *sq_tail - 1;
    tag = sqes[tail & sq_mask].user_data;
    __atomic_store_n(sq_tail, tail, __ATOMIC_RELEASE);
    return true;
}

bool emc_uring::next(uint64_t & tag, int64_t & result) {
    const unsigned head = *cq_head;
    if (head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE)) {
        return false;
    }
    tag    = cqes[head & cq_mask].user_data;
    result = cqes[head & cq_mask].res;
    __atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
    return true;
}
