// SPDX-License-Identifier: MIT
// The expert cache of one model: slot tables and a reader tied together. The only mutex and the only wait are here.
//
// A *call* is one product (one kind) of one layer for one batch:
//
//   thread 0      acquire   looks up all experts of the batch, pins them, queues the reads of what is missing (all
//                           kinds of the layer, the executing kind first), and fixes the order: resident first
//   every thread  order     walks the experts in that order
//   every thread  wait      the address of one expert's piece, as soon as that piece has landed
//   every thread  release   the last one unpins
//
// acquire returns nullptr when the batch must use the mapping: it needs more experts than the layer has slots, or
// slots and call objects are taken by other contexts at this moment. Either counts as a bypass and is correct.
//
// Several calls may be open at once, from different contexts. Races and what excludes them (tests/test-order.cpp
// has a test for each, of the same name):
//
//   readiness_read_once      a read ends while the order is made: the order is made from one snapshot
//   slot_in_use_is_pinned    another context wants the slot that is being multiplied: pins exclude eviction
//   no_duplicate_read        two contexts miss the same expert: the first claims it (LOADING), the second joins
//   late_piece_keeps_slot    a call ends while other kinds of its experts are still on the way: LOADING excludes eviction
//   error_uses_mapping       a read fails: wait returns nullptr, the expert is computed from the mapping and not kept
//   shutdown_in_flight       the cache is closed with reads queued: they are cancelled or awaited before memory goes
//
// Lock order: the mutex here is never held while the reader is called, nor across I/O.
#pragma once

#include "../core/config.h"
#include "../core/slot-table.h"
#include "../core/stats.h"
#include "../io/reader.h"
#include "trace-writer.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

// Where one kind of a layer is: expert e is at offset + e*stride, stride bytes long.
struct emc_extent {
    int      file   = 0;
    uint64_t offset = 0;
    uint64_t stride = 0;
};

struct emc_layer {
    int                     n_experts = 0;
    std::vector<emc_extent> kinds;  // in order of execution, at most EMC_MAX_KINDS
};

// Bytes of one slot of this layer.
uint64_t emc_layer_slot_bytes(const emc_layer & layer);

struct emc_cache_options {
    int         n_slots    = 0;          // in each layer
    uint64_t    read_bytes = 1024*1024;  // largest single read, a multiple of EMC_ALIGN
    std::string policy     = EMC_DEFAULT_POLICY;
};

class emc_cache;

// The readiness of one piece of one slot. Written by the reader's threads, read by compute threads.
struct emc_piece {
    std::atomic<int32_t> left{0};  // reads that have not ended
    std::atomic<bool>    failed{false};
    char *               data = nullptr;  // guarded by left: written before the reads are queued
};

struct emc_call {
    int n = 0;                          // experts of this batch
    std::vector<int32_t>     experts;   // [n], as handed to acquire
    std::vector<int32_t>     order;     // [n], indices into experts

    // private to the cache
    int                      layer = 0;
    std::vector<emc_slot>    slots;     // [n]
    std::vector<emc_piece *> pieces;    // [n]
    std::vector<uint8_t>     ready;     // [n], the snapshot that order was made from
    std::atomic<int>         users{0};
};

class emc_cache : private emc_read_sink {
public:
    // nullptr, and error says why, if the slab cannot be had. The reader is started by this call; the trace may be null.
    static std::unique_ptr<emc_cache> make(std::vector<emc_layer> layers, const emc_cache_options & options,
        std::unique_ptr<emc_reader> reader, std::unique_ptr<emc_trace_writer> trace, std::string & error);

    // REQUIRES: every call was released.
    ~emc_cache() override;

    // experts: n different ids. rows: tokens of the batch. batch: identifies the batch among those of the layer that
    // are under way (its products share it). users: threads that will call release.
    emc_call * acquire(int layer, int kind, const int32_t * experts, int n, int64_t rows, const void * batch, int users);

    // The address of the i-th expert's piece, or nullptr: it could not be read. REQUIRES: 0 <= i < call->n.
    const void * wait(emc_call * call, int i);

    // true for the last of the call's users: the call object is free again.
    bool release(emc_call * call);

    emc_stats stats() const;
    int       n_slots() const { return options.n_slots; }

    // Aborts if a relation between tables, counters and pins does not hold. REQUIRES: no call open, reader idle.
    void check() const;

private:
    // A batch whose products are under way, so that its lookups count once.
    struct batch_info {
        const void * batch = nullptr;
        uint32_t     kinds = 0;  // bit for each product seen
    };

    struct layer_state {
        emc_layer                      layout;
        std::unique_ptr<emc_slot_table> table;
        char *                         memory     = nullptr;
        uint64_t                       slot_bytes = 0;
        std::vector<uint64_t>          piece_at;    // [kind], offset in a slot
        std::unique_ptr<emc_piece[]>   pieces;      // [slot][kind]
        std::vector<int32_t>           slot_left;   // [slot], pieces that have not landed
        batch_info                     batches[4];
        int                            next_batch = 0;
    };

    emc_cache(std::vector<emc_layer> layers, const emc_cache_options & options, std::unique_ptr<emc_reader> reader,
        std::unique_ptr<emc_trace_writer> trace);

    void read_done(const emc_read & read, int error) override;
    bool begins_batch(layer_state & layer, int kind, const void * batch);
    void queue_piece(layer_state & layer, int layer_id, emc_slot slot, int kind, std::vector<emc_read> & reads);
    emc_piece & piece(layer_state & layer, emc_slot slot, int kind) const {
        return layer.pieces[(size_t) slot * layer.layout.kinds.size() + kind];
    }

    const emc_cache_options           options;
    std::vector<layer_state>          layers;
    std::unique_ptr<emc_trace_writer> trace;
    char *                            slab       = nullptr;
    uint64_t                          slab_bytes = 0;

    mutable std::mutex                     mutex;  // guards all below, the tables, slot_left and batches
    std::condition_variable                landed;
    emc_stats                              counters;
    emc_tick                               tick      = 0;
    int                                    n_waiting = 0;
    std::chrono::steady_clock::time_point  waiting_since;
    std::vector<std::unique_ptr<emc_call>> calls;
    std::vector<emc_call *>                free_calls;

    // last member: its threads end before anything that they touch
    std::unique_ptr<emc_reader>       reader;
};
