// SPDX-License-Identifier: MIT
// The reader port: takes reads, delivers each exactly once to a sink.
//
// The reader owns a read's buffer from submit until the sink has been told. It may tell in any order, from any of
// its threads, and from within submit. No lock is held while the sink is called.
#pragma once

#include "../core/types.h"

#include <memory>

class emc_file_set;

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

class emc_read_sink {
public:
    virtual ~emc_read_sink() = default;

    // error is 0, or the errno of what went wrong. ENODATA: the file ended early. ECANCELED: the reader stops.
    virtual void read_done(const emc_read & read, int error) = 0;
};

struct emc_reader_stats {
    uint64_t bytes = 0;
    uint64_t ns    = 0;  // summed over threads
};

class emc_reader {
public:
    // Reads that have not begun are cancelled, those under way are awaited.
    virtual ~emc_reader() = default;

    // Must be called once, before submit.
    virtual void start(emc_read_sink & sink) = 0;

    // Begun in this order.
    virtual void submit(const emc_read * reads, size_t n) = 0;

    virtual emc_reader_stats stats() const = 0;

    virtual const char * name() const = 0;
};

// The one call that a pool thread makes, so that a test can make it short, slow or broken.
class emc_pread {
public:
    virtual ~emc_pread() = default;

    // As pread(2): -1 and errno, or the number of bytes.
    virtual int64_t pread(int fd, void * buffer, uint64_t length, uint64_t offset) = 0;
};

// A pool of depth threads, each with one read in flight. files (and pread, unless null) must outlive it.
std::unique_ptr<emc_reader> emc_reader_pread(const emc_file_set & files, int depth, emc_pread * pread = nullptr);
