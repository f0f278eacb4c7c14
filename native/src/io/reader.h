// SPDX-License-Identifier: MIT
// The reader port: takes reads, delivers each exactly once to a sink.
//
// The reader owns a read's buffer from submit until the sink has been told. It may tell in any order, from any of
// its threads, and from within submit. No lock is held while the sink is called.
#pragma once

#include "../core/types.h"

#include <memory>
#include <string>

class emc_file_set;
class emc_io_calls;

struct emc_read {
    int      file   = 0;
    uint64_t offset = 0;        // aligned
    uint64_t length = 0;        // aligned
    uint64_t needed = 0;        // > 0; fewer bytes than this is an error
    void *   buffer = nullptr;  // aligned, length bytes

    // whose piece this is; the reader only hands it back
    int      layer      = 0;
    emc_slot slot       = EMC_NO_SLOT;
    int      kind       = 0;
    uint32_t generation = 0;
};

inline bool emc_read_valid(const emc_read & read) {
    return read.offset % EMC_ALIGN == 0 && read.length % EMC_ALIGN == 0 && (uintptr_t) read.buffer % EMC_ALIGN == 0 &&
        read.needed > 0 && read.needed <= read.length;
}

class emc_read_sink {
public:
    virtual ~emc_read_sink() = default;

    // error is 0, or the errno of what went wrong. ENODATA: the file ended early. ECANCELED: the reader stops.
    virtual void read_done(const emc_read & read, int error) = 0;
};

struct emc_reader_stats {
    uint64_t bytes = 0;
    uint64_t ns    = 0;  // that reads were under way, summed over reads
};

class emc_reader {
public:
    // Reads that have not begun are cancelled, those under way are awaited.
    virtual ~emc_reader() = default;

    // Must be called once, before submit.
    virtual void start(emc_read_sink & sink) = 0;

    // Begun in this order. REQUIRES: each is valid.
    virtual void submit(const emc_read * reads, size_t n) = 0;

    virtual emc_reader_stats stats() const = 0;

    virtual const char * name() const = 0;
};

// Below, depth is how many reads may be under way at the same time; files (and calls, unless null) must outlive the reader.

// A pool of depth threads that call pread.
std::unique_ptr<emc_reader> emc_reader_pread(const emc_file_set & files, int depth, emc_io_calls * calls = nullptr);

// One thread and an io_uring; nullptr, and why says it, where the kernel refuses one.
std::unique_ptr<emc_reader> emc_reader_uring(const emc_file_set & files, int depth, std::string & why, emc_io_calls * calls = nullptr);

// More threads than this take more from the cores that compute than they add to what a drive delivers.
constexpr int EMC_POOL_MAX = 4;

// The reader by name: "io_uring", "pread", or "auto": the ring, and the pool where the kernel refuses one. depth becomes
// what is in use: a pool has at most EMC_POOL_MAX threads. why says what was refused, and is empty if nothing was.
// nullptr if the one asked for cannot be had.
std::unique_ptr<emc_reader> emc_reader_make(const std::string & name, const emc_file_set & files, int & depth, std::string & why);
