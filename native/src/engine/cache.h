// SPDX-License-Identifier: MIT
// The expert cache of one model: slot tables, staging and a reader tied together. The only mutex and the only wait are here.
//
// A *call* is one product (one kind) of one layer for one batch:
//
//   thread 0      acquire   looks up all experts of the batch, pins them, queues the reads of what is missing (all
//                           kinds of the layer, the executing kind first); resident experts take the first positions
//   every thread  next      the expert at a position; a position is decided once, for whichever piece has landed by then
//   every thread  data      the address of that expert's piece
//   every thread  release   the last one unpins
//
// A call that must not or cannot give every missing expert a slot is a *stream*: what is resident is used from its slot,
// EMPTY slots are filled, experts of the last rows take the place of residents that the batch does not use and the policy
// values less, and the rest passes piece by piece through the staging buffers. A buffer is free again once
// every thread has gone past its expert; then it takes the next piece of this product, after the last one the pieces
// of the products that follow (the same experts), and where nearly all experts are used those of the next layer. Prefill
// streams whenever it would have to evict: it uses every expert about once, and decode would pay for its traces.
//
// acquire returns nullptr when the batch must use the mapping: it exceeds the slots while there is no staging or another
// stream has it, or call objects are taken by other contexts. Each counts as a bypass and is correct.
//
// Several calls may be open at once, from different contexts. Races and what excludes them (tests/test-order.cpp
// has a test for each, of the same name):
//
//   readiness_read_once      a read ends while a position is decided: the mutex is held, each piece is asked once
//   slot_in_use_is_pinned    another context wants the slot that is being multiplied: pins exclude eviction
//   no_duplicate_read        two contexts miss the same expert: the first claims it (LOADING), the second joins
//   late_piece_keeps_slot    a call ends while other kinds of its experts are still on the way: LOADING excludes eviction
//   error_uses_mapping       a read fails: data returns nullptr, the expert is computed from the mapping and not kept
//   shutdown_in_flight       the cache is closed with reads queued: they are cancelled or awaited before memory goes
//   slowest_keeps_buffer     one thread is past an expert, another still multiplies it: the last to pass frees the buffer
//   abandoned_batch          the product that was read ahead never comes: the next call takes the buffers
//   late_read_keeps_buffer   a wrong guess is still under way when its buffer is wanted: only landed ones are taken
//   second_stream            two contexts stream at once: one has staging, the other uses the mapping
//   resize_in_use            a slot beyond the new size is being multiplied or read into: it keeps its memory until it is not
//   guess_is_joined          a call asks for what is being read on a guess: it waits for that read, and no other begins
//   joined_slot_of_a_stream  a decode call joins a slot that a stream fills: the later kinds are queued at the latest
//                            when the stream's call ends
//
// Nobody waits in a circle. A thread waits only in next, holding nothing, for any one piece of its call to land, and every
// such piece gets there: its read has been queued, or it is queued by a call that does not wait for this one (only the
// one open stream holds reads back, and never of the kind that it executes itself), or it needs a buffer. Buffers
// come free without this call's help (guesses land) or by its own threads going past pieces that have landed, which
// take the next positions at once.
//
// Lock order: the mutex here is never held while the reader is called, nor across I/O.
#pragma once

#include "../core/config.h"
#include "../core/layout.h"
#include "../core/slot-table.h"
#include "../core/stats.h"
#include "../io/reader.h"
#include "lookahead.h"
#include "staging.h"
#include "trace-writer.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

struct emc_cache_options {
    int         n_slots    = 0;          // in each layer
    int         n_staging  = 0;          // buffers for streams, each of the largest piece
    uint64_t    read_bytes = 1024*1024;  // largest single read, a multiple of EMC_ALIGN
    std::string policy     = EMC_DEFAULT_POLICY;
    int         n_guesses  = 0;          // ranks of a guess that may be read ahead in decode; 0 = never
    bool        on_trial   = true;       // read ahead only as long as that is faster
};

// Experts that the last rows of a prompt chose, the last row last: [n_rows][width].
struct emc_tail {
    const int32_t * experts = nullptr;
    int             n_rows  = 0;
    int             width   = 0;
};

class emc_cache;

struct emc_call {
    int n = 0;                          // experts of this batch
    std::vector<int32_t>     experts;   // [n], as handed to acquire

    // private to the cache; guarded by its mutex unless it says otherwise
    int                      layer   = 0;
    int                      kind    = 0;
    int                      n_users = 0;
    std::vector<emc_slot>    slots;     // [n], EMC_NO_SLOT: streams. Fixed by acquire
    std::vector<int>         buffers;   // [n], staging buffer that it holds
    std::vector<emc_piece *> pieces;    // [n], nullptr while a streaming piece has no buffer. Fixed once it is in order
    std::vector<int32_t>     order;     // the first n_decided, indices into experts, are fixed
    std::vector<int32_t>     pending;   // the rest
    std::vector<int32_t>     worthy;    // streaming, and considered for a slot
    std::vector<int32_t>     index_of;  // by expert, scratch
    std::vector<int32_t>     unread;    // streaming, no buffer yet; from next_unread on
    size_t                   next_unread = 0;
    std::vector<emc_read>    held_back; // later kinds of slots being filled: after this kind's pieces
    int                      n_waiting = 0;
    std::condition_variable  landed;
    std::atomic<int>         n_decided{0};
    std::atomic<int>         users{0};
    std::unique_ptr<std::atomic<int>[]> to_pass;  // [n], threads that have not gone past a streaming expert
};

class emc_cache : private emc_read_sink {
public:
    // nullptr, and error says why, if the slab cannot be had. The reader is started by this call; the trace may be null.
    // REQUIRES: emc_extent_fault finds nothing in any kind of any layer.
    static std::unique_ptr<emc_cache> make(std::vector<emc_layer> layers, const emc_cache_options & options,
        std::unique_ptr<emc_reader> reader, std::unique_ptr<emc_trace_writer> trace, std::string & error);

    // REQUIRES: every call was released.
    ~emc_cache() override;

    // experts: n different ids. rows: tokens of the batch. batch: identifies the batch among those of the layer that
    // are under way (its products share it). users: threads that will call release. tail: of a prompt, with its first
    // product; all of its experts are among the n. Without it the policy takes the batch for one row.
    emc_call * acquire(int layer, int kind, const int32_t * experts, int n, int64_t rows, const void * batch, int users,
        emc_tail tail = {});

    // The expert to compute at this position, an index into call->experts, once its piece has landed. Every thread asks
    // for 0, 1, ... n-1 in turn, and by asking says that it is done with the one before.
    int next(emc_call * call, int position);

    // The address of that expert's piece, or nullptr: it could not be read. REQUIRES: next has returned i.
    const void * data(const emc_call * call, int i) const;

    // true for the last of the call's users: the call object is free again. REQUIRES: the thread has asked for every
    // position, or no thread asks for any more.
    bool release(emc_call * call);

    // How many guesses at a layer's next choice are of use now: 0 means that none should be made.
    int guesses_wanted() const;

    // What a decode batch, which has just acquired the layer before, will probably choose there: best first, ids differ.
    // Reads begin when no piece that is asked for is under way, and evict nothing that is pinned or itself guessed.
    void foresee(int layer, const int32_t * experts, int n);

    // Slots of each layer to use from now on, at most as many as the cache was made with. What lies beyond gives its
    // memory back once nobody uses it; slots that were in use just now do so at the next call.
    void resize(int n_slots);

    emc_stats stats() const;
    int       n_slots()       const { return in_use.load(std::memory_order_relaxed); }
    int       n_slots_most()  const { return options.n_slots; }
    uint64_t  touched_bytes() const { return touched.load(std::memory_order_relaxed); }  // of the slots, backed by memory

    // Aborts if a relation between tables, counters and pins does not hold. REQUIRES: no call open, reader idle.
    void check() const;

private:
    // A batch whose products are under way, so that its lookups count once.
    struct batch_info {
        const void * batch = nullptr;
        uint32_t     kinds = 0;  // bit for each product seen
        uint64_t     used  = 0;  // the larger, the later
    };

    struct layer_state {
        emc_layer                      layout;
        std::unique_ptr<emc_slot_table> table;
        char *                         memory     = nullptr;
        uint64_t                       slot_bytes = 0;
        std::vector<uint64_t>          piece_at;    // [kind], offset in a slot
        std::unique_ptr<emc_piece[]>   pieces;      // [slot][kind]
        std::vector<int32_t>           slot_left;   // [slot], pieces that have not landed
        std::vector<uint8_t>           touched;     // [slot], backed by memory
        std::vector<uint8_t>           unproven;    // [slot], loaded on a guess and not asked for since
        batch_info                     batches[16];  // more contexts than have calls open do not matter
        uint64_t                       batch_uses = 0;
    };

    emc_cache(std::vector<emc_layer> layers, const emc_cache_options & options, std::unique_ptr<emc_reader> reader,
        std::unique_ptr<emc_trace_writer> trace);

    void read_done(const emc_read & read, int error) override;
    bool begins_batch(layer_state & layer, int kind, const void * batch);
    int  pin_resident(emc_call & call, const int32_t * experts, int n);
    void unpin_all(emc_call & call);
    void expect(const emc_call & call);
    void take_landed(emc_call & call);
    void decide(emc_call & call, int position);
    void pass(emc_call & call, int i);
    void pump(std::vector<emc_read> & reads);
    void queue_piece(emc_piece & piece, const emc_piece_key & key, char * buffer, emc_read read, std::vector<emc_read> & reads);
    void queue_slot_piece(int layer_id, emc_slot slot, int kind, std::vector<emc_read> & reads);
    void queue_staged_piece(const emc_piece_key & key, int buffer, std::vector<emc_read> & reads);
    void submit(const std::vector<emc_read> & reads);
    void slot_piece_landed(const emc_read & read);
    void hear(const emc_call & call, int64_t rows, emc_tail tail, bool stream);
    void choose_worthy(emc_call & call, const emc_tail & tail);
    emc_slot load(int layer_id, int expert, int * evicted, bool of_worth);
    void prove(layer_state & layer, emc_slot slot);
    void follow_guesses(std::vector<emc_read> & reads);
    emc_piece & piece(layer_state & layer, emc_slot slot, int kind) const {
        return layer.pieces[(size_t) slot * layer.layout.kinds.size() + kind];
    }

    const emc_cache_options           options;
    std::vector<layer_state>          layers;
    std::unique_ptr<emc_trace_writer> trace;
    char *                            slab       = nullptr;
    uint64_t                          slab_bytes = 0;

    std::atomic<int>                  in_use{0};
    std::atomic<uint64_t>             touched{0};

    mutable std::mutex                     mutex;  // guards all below, the tables, pieces, slot_left and batches
    emc_stats                              counters;
    emc_tick                               tick      = 0;
    int                                    n_waiting = 0;
    std::chrono::steady_clock::time_point  waiting_since;
    std::vector<std::unique_ptr<emc_call>> calls;
    std::vector<emc_call *>                free_calls;
    emc_lookahead                          lookahead;
    bool                                   closing      = false;
    int                                    asked_left   = 0;  // pieces for slots under way that were asked for
    int                                    guessed_left = 0;  // and that were guessed
    std::unique_ptr<emc_staging>           staging;
    emc_call *                             streaming = nullptr;  // the one open call that uses staging
    std::vector<emc_piece_key>             expected;             // pieces to read ahead; from next_expected on
    size_t                                 next_expected = 0;

    // last member: its threads end before anything that they touch
    std::unique_ptr<emc_reader>       reader;
};
