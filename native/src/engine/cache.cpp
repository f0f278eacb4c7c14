// SPDX-License-Identifier: MIT
#include "cache.h"

#include "../core/budget.h"
#include "../core/check.h"
#include "../core/hand-over.h"
#include "../core/order.h"
#include "../core/saturating.h"
#include "../io/slab.h"
#include "../io/window.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <sys/mman.h>

// More contexts than this computing at the same moment: the surplus uses the mapping.
static constexpr int N_CALLS = 16;

// In emc_read::layer: the read goes into staging, and slot is the buffer.
static constexpr int STAGED = -1;

std::unique_ptr<emc_cache> emc_cache::make(std::vector<emc_layer> layers, const emc_cache_options & options,
        std::unique_ptr<emc_reader> reader, std::unique_ptr<emc_trace_writer> trace, std::string & error) {
    std::unique_ptr<emc_cache> cache(new emc_cache(std::move(layers), options, std::move(reader), std::move(trace)));
    if (!cache->slab) {
        error = "cannot map " + std::to_string(cache->slab_bytes >> 20) + " MiB for slots: " + strerror(errno);
        return nullptr;
    }
    cache->reader->start(*cache);
    return cache;
}

emc_cache::emc_cache(std::vector<emc_layer> layouts, const emc_cache_options & options_,
        std::unique_ptr<emc_reader> reader_, std::unique_ptr<emc_trace_writer> trace_) :
    options(options_), trace(std::move(trace_)), lookahead((int) layouts.size(), options_.n_guesses, options_.on_trial),
    reader(std::move(reader_)) {
    EMC_CHECK(options.n_slots > 0 && options.read_bytes >= EMC_ALIGN && options.read_bytes % EMC_ALIGN == 0);
    uint64_t buffer_bytes = 0;
    for (const emc_layer & layout : layouts) {
        slab_bytes = emc_sum(slab_bytes, emc_product(emc_layer_slot_bytes(layout), (uint64_t) options.n_slots));
        for (const emc_extent & kind : layout.kinds) {
            buffer_bytes = std::max(buffer_bytes, emc_piece_bytes(kind.stride));
        }
    }
    slab_bytes = emc_sum(slab_bytes, emc_product(buffer_bytes, (uint64_t) options.n_staging));
    // one slab for the cache's life: pages are never given back on eviction, since to fault them in again costs
    // more than it saves, but only when the cache shrinks
    slab = (char *) emc_slab_map(slab_bytes);
    if (!slab) {
        return;
    }

    layers.resize(layouts.size());
    char * next = slab;
    int max_experts = 0;
    for (size_t i = 0; i < layouts.size(); ++i) {
        layer_state & layer = layers[i];
        layer.layout = std::move(layouts[i]);
        const size_t n_kinds = layer.layout.kinds.size();
        EMC_CHECK(n_kinds > 0 && n_kinds <= EMC_MAX_KINDS);
        for (const emc_extent & kind : layer.layout.kinds) {
            layer.piece_at.push_back(layer.slot_bytes);
            layer.slot_bytes += emc_piece_bytes(kind.stride);
        }
        layer.memory    = next;
        layer.pieces    = std::make_unique<emc_piece[]>((size_t) options.n_slots * n_kinds);
        layer.slot_left.assign(options.n_slots, 0);
        layer.touched  .assign(options.n_slots, 0);
        layer.unproven .assign(options.n_slots, 0);
        auto policy     = emc_policy_make(options.policy, layer.layout.n_experts);
        layer.table     = std::make_unique<emc_slot_table>(layer.layout.n_experts, options.n_slots, std::move(policy));
        next += layer.slot_bytes * (uint64_t) options.n_slots;
        max_experts = std::max(max_experts, layer.layout.n_experts);
    }

    in_use  = options.n_slots;
    staging = std::make_unique<emc_staging>(options.n_staging, next, buffer_bytes);
    expected.reserve((size_t) max_experts * EMC_MAX_KINDS);

    for (int i = 0; i < N_CALLS; ++i) {
        auto call = std::make_unique<emc_call>();
        call->experts.resize(max_experts);
        call->slots  .resize(max_experts);
        call->buffers.resize(max_experts);
        call->pieces .resize(max_experts);
        call->order  .reserve(max_experts);
        call->pending.reserve(max_experts);
        call->worthy .reserve(max_experts);
        call->index_of.resize(max_experts);
        call->unread .reserve(max_experts);
        call->to_pass = std::make_unique<std::atomic<int>[]>((size_t) max_experts);
        free_calls.push_back(call.get());
        calls.push_back(std::move(call));
    }
}

emc_cache::~emc_cache() {
    EMC_CHECK(!slab || free_calls.size() == calls.size());
    {
        std::lock_guard<std::mutex> lock(mutex);
        closing = true;  // with no stream open and no guess followed, a read that ends queues no other
    }
    reader.reset();
    if (slab) {
        munmap(slab, slab_bytes);
    }
}

// Products of a batch come in order of execution, so a kind seen twice is the next batch under the same identity
// (a graph is reused from token to token).
bool emc_cache::begins_batch(layer_state & layer, int kind, const void * batch) {
    for (batch_info & known : layer.batches) {
        if (known.batch == batch) {
            known.used = ++layer.batch_uses;
            if (known.kinds & (1u << kind)) {
                known.kinds = 1u << kind;
                return true;
            }
            known.kinds |= 1u << kind;
            return false;
        }
    }
    // in place of one whose products have all come, the one not heard of for longest: its graph is gone, or its context pauses
    const uint32_t all    = (1u << layer.layout.kinds.size()) - 1;
    batch_info &   oldest = *std::min_element(std::begin(layer.batches), std::end(layer.batches), [all](const batch_info & a, const batch_info & b) {
        const bool a_open = a.batch && a.kinds != all;
        const bool b_open = b.batch && b.kinds != all;
        return a_open != b_open ? b_open : a.used < b.used;
    });
    oldest = { batch, 1u << kind, ++layer.batch_uses };
    return true;
}

void emc_cache::queue_piece(emc_piece & p, const emc_piece_key & key, char * buffer, emc_read read, std::vector<emc_read> & reads) {
    const emc_extent & extent = layers[key.layer].layout.kinds[key.kind];
    const emc_window   window = emc_window_of(extent.offset + extent.stride * (uint64_t) key.expert, extent.stride);
    const uint64_t     n_cuts = emc_window_cuts(window, options.read_bytes);

    EMC_CHECK(p.left == 0 && window.end - window.begin <= emc_piece_bytes(extent.stride));
    p.data   = buffer + window.lead;
    p.failed = false;
    p.left   = (int32_t) n_cuts;

    read.file = extent.file;
    read.kind = key.kind;
    for (uint64_t i = 0; i < n_cuts; ++i) {
        const emc_cut cut = emc_window_cut(window, extent.stride, options.read_bytes, i);
        read.offset = cut.offset;
        read.length = cut.length;
        read.needed = cut.needed;
        read.buffer = buffer + (cut.offset - window.begin);
        reads.push_back(read);
    }
    counters.pieces_queued += 1;
}

void emc_cache::queue_slot_piece(int layer_id, emc_slot slot, int kind, std::vector<emc_read> & reads) {
    layer_state & layer = layers[layer_id];
    emc_read read;
    read.layer      = layer_id;
    read.slot       = slot;
    read.generation = layer.table->generation(slot);
    queue_piece(piece(layer, slot, kind), { layer_id, kind, layer.table->expert(slot) },
        layer.memory + layer.slot_bytes * (uint64_t) slot + layer.piece_at[kind], read, reads);
}

void emc_cache::queue_staged_piece(const emc_piece_key & key, int buffer, std::vector<emc_read> & reads) {
    emc_read read;
    read.layer = STAGED;
    read.slot  = buffer;
    queue_piece(staging->piece(buffer), key, staging->memory(buffer), read, reads);
}

// Before anybody looks for victims, so that no expert of a batch evicts another. Returns how many are missing.
int emc_cache::pin_resident(emc_call & call, const int32_t * experts, int n) {
    emc_slot_table & table = *layers[call.layer].table;
    int n_miss = 0;
    call.n = n;
    for (int i = 0; i < n; ++i) {
        call.experts[i] = experts[i];
        call.slots[i]   = table.find(experts[i]);
        if (call.slots[i] == EMC_NO_SLOT) {
            n_miss += 1;
        } else {
            table.pin(call.slots[i]);
        }
    }
    return n_miss;
}

void emc_cache::unpin_all(emc_call & call) {
    for (int i = 0; i < call.n; ++i) {
        if (call.slots[i] != EMC_NO_SLOT) {
            layers[call.layer].table->unpin(call.slots[i]);
        }
    }
}

emc_call * emc_cache::acquire(int layer_id, int kind, const int32_t * experts, int n, int64_t rows, const void * batch, int users,
        emc_tail tail) {
    layer_state &    layer   = layers.at(layer_id);
    emc_slot_table & table   = *layer.table;
    const emc_phase  phase   = emc_phase_of(rows);
    const int        n_kinds = (int) layer.layout.kinds.size();
    std::vector<emc_read> reads;
    emc_call * call = nullptr;
    EMC_HAND_OVER();
    {
        std::lock_guard<std::mutex> lock(mutex);
        const bool first = begins_batch(layer, kind, batch);
        if (first && phase == EMC_PREFILL) {
            lookahead.interrupted(layer_id);
        } else if (first) {
            if (layer_id == 0) {
                counters.decode_tokens += (uint64_t) rows;
                lookahead.token(emc_lookahead::clock::now(), rows);
            }
            lookahead.event(layer_id, experts, n);
        }
        if (n == 0 || free_calls.empty()) {
            counters.bypass[phase] += 1;
            return nullptr;
        }
        call = free_calls.back();
        call->layer   = layer_id;
        call->kind    = kind;
        call->n_users = users;
        const int n_miss = pin_resident(*call, experts, n);

        bool stream = n_miss > (phase == EMC_PREFILL ? table.empty() : table.available());
        if (stream && (staging->size() == 0 || streaming)) {
            stream = false;
            if (n_miss > table.available()) {
                unpin_all(*call);
                counters.bypass[phase] += 1;
                return nullptr;
            }
        }
        free_calls.pop_back();
        call->users.store(users, std::memory_order_relaxed);

        int n_claimed = 0;
        for (int i = 0; i < n; ++i) {
            call->pieces[i]  = nullptr;
            call->buffers[i] = EMC_NO_BUFFER;
            if (stream && call->slots[i] == EMC_NO_SLOT) {
                call->to_pass[i].store(users, std::memory_order_relaxed);
                call->buffers[i] = staging->claim({ layer_id, kind, experts[i] }, call);
                n_claimed       += call->buffers[i] != EMC_NO_BUFFER;
            }
        }

        if (first) {
            hear(*call, rows, tail, stream);
        }
        emc_trace_writer * const record = first ? trace.get() : nullptr;
        for (int i = 0; i < n; ++i) {
            if (call->slots[i] != EMC_NO_SLOT) {
                prove(layer, call->slots[i]);
                counters.lookups[phase] += first;
                counters.hits[phase]    += first;
                if (record) {
                    record->hit(experts[i]);
                }
            }
        }

        std::vector<emc_slot> loading;
        const auto load_missing = [&](int i) {
            int evicted = -1;
            const emc_slot slot = load(layer_id, experts[i], &evicted, stream);
            EMC_CHECK(stream || slot != EMC_NO_SLOT);
            if (record) {
                slot == EMC_NO_SLOT ? record->passed(experts[i]) : record->miss(experts[i], evicted);
            }
            if (slot != EMC_NO_SLOT) {
                call->slots[i] = slot;
                asked_left += n_kinds;
                loading.push_back(slot);
                counters.lookups[phase] += 1;
                counters.misses[phase]  += 1;
            }
        };
        if (!stream) {
            // a later product of a batch finds its expert gone only if another context took the slot in between:
            // then it is looked up, and read, once more
            for (int i = 0; i < n; ++i) {
                if (call->slots[i] == EMC_NO_SLOT) {
                    load_missing(i);
                }
            }
        } else if (first) {
            choose_worthy(*call, tail);
            for (const int32_t i : call->worthy) {
                load_missing(i);
            }
        }
        if (record) {
            record->end();
        }

        call->unread.clear();
        call->next_unread = 0;
        for (int i = 0; i < n; ++i) {
            if (call->slots[i] != EMC_NO_SLOT) {
                call->pieces[i] = &piece(layer, call->slots[i], kind);
                continue;
            }
            if (call->buffers[i] != EMC_NO_BUFFER) {
                call->pieces[i] = &staging->piece(call->buffers[i]);
            } else {
                call->unread.push_back(i);
            }
            counters.lookups[phase]  += first;
            counters.misses[phase]   += first;
            counters.streamed[phase] += first;
        }
        // the executing kind of every missing expert, then the kinds in the order in which they will execute
        for (int step = 0; step < n_kinds; ++step) {
            for (const emc_slot slot : loading) {
                queue_slot_piece(layer_id, slot, (kind + step) % n_kinds, stream && step > 0 ? call->held_back : reads);
            }
        }
        if (stream) {
            counters.ahead_used += (uint64_t) n_claimed;
            streaming = call;
            expect(*call);
            pump(reads);
        }
        call->order.clear();
        call->pending.resize((size_t) n);
        std::iota(call->pending.begin(), call->pending.end(), 0);
        take_landed(*call);
    }
    submit(reads);
    return call;
}

// What the policy learns from a batch, and the beginning of its line in the trace. The rows of a prompt follow each other
// as tokens in decode do, so they are events of their own: a phrase of the prompt that comes back is recognised.
void emc_cache::hear(const emc_call & call, int64_t rows, emc_tail tail, bool stream) {
    const bool apart = stream || tail.n_rows > 0;  // the batch's own line does not have all that the policy hears
    if (tail.n_rows == 0) {
        tail = { call.experts.data(), 1, call.n };
    }
    for (int row = 0; row < tail.n_rows; ++row) {
        const int32_t * experts = tail.experts + (size_t) row * tail.width;
        layers[call.layer].table->event(experts, tail.width, ++tick);
        if (trace && apart) {
            trace->heard(call.layer, experts, tail.width);
        }
    }
    if (trace) {
        trace->begin(call.layer, rows, stream);
    }
}

// Gives the expert a slot, pinned once; the caller queues its pieces and says whether they were asked for.
emc_slot emc_cache::load(int layer_id, int expert, int * evicted, bool of_worth) {
    layer_state &  layer = layers[layer_id];
    const emc_slot slot  = layer.table->begin_load(expert, evicted, of_worth);
    if (slot != EMC_NO_SLOT) {
        layer.slot_left[slot]  = (int32_t) layer.layout.kinds.size();
        counters.evictions    += *evicted >= 0;
        counters.guessed_lost += layer.unproven[slot];
        layer.unproven[slot]   = 0;
        touched               += layer.touched[slot] ? 0 : layer.slot_bytes;
        layer.touched[slot]    = 1;
    }
    return slot;
}

// A call uses the slot. What is still on its way to it is asked for from here on.
void emc_cache::prove(layer_state & layer, emc_slot slot) {
    if (layer.unproven[slot]) {
        layer.unproven[slot] = 0;
        counters.guessed_used += 1;
        asked_left   += layer.slot_left[slot];
        guessed_left -= layer.slot_left[slot];
    }
}

void emc_cache::resize(int n) {
    EMC_CHECK(n >= 1 && n <= options.n_slots);
    in_use = n;
    for (layer_state & layer : layers) {
        std::lock_guard<std::mutex> lock(mutex);  // for a layer at a time: who computes need not wait for all
        layer.table->use(n);
        for (emc_slot slot = n; slot < options.n_slots; ++slot) {
            const int expert = layer.touched[slot] ? layer.table->vacate(slot) : emc_slot_table::EMC_BUSY;
            if (expert != emc_slot_table::EMC_BUSY) {
                counters.evictions    += expert >= 0;
                counters.guessed_lost += layer.unproven[slot];
                layer.unproven[slot]   = 0;
                layer.touched[slot]    = 0;
                touched               -= layer.slot_bytes;
                madvise(layer.memory + layer.slot_bytes * (uint64_t) slot, layer.slot_bytes, MADV_DONTNEED);
            }
        }
    }
}

void emc_cache::submit(const std::vector<emc_read> & reads) {
    EMC_HAND_OVER();
    if (!reads.empty()) {
        reader->submit(reads.data(), reads.size());
    }
}

void emc_cache::take_landed(emc_call & call) {
    emc_order_take_ready(call.pending, call.order, [&call](int32_t i) { return call.pieces[i] && call.pieces[i]->left == 0; });
    call.n_decided.store((int) call.order.size(), std::memory_order_release);
}

int emc_cache::next(emc_call * call, int position) {
    if (position > 0) {
        pass(*call, call->order[position - 1]);
    }
    if (position >= call->n_decided.load(std::memory_order_acquire)) {
        decide(*call, position);
    }
    return call->order[position];
}

void emc_cache::decide(emc_call & call, int position) {
    EMC_HAND_OVER();
    std::unique_lock<std::mutex> lock(mutex);
    const auto decided = [&] {
        take_landed(call);
        return (int) call.order.size() > position;
    };
    if (decided()) {
        return;
    }
    if (n_waiting++ == 0) {
        waiting_since = std::chrono::steady_clock::now();
    }
    call.n_waiting += 1;
    call.landed.wait(lock, decided);
    call.n_waiting -= 1;
    if (--n_waiting == 0) {
        const auto waited = std::chrono::steady_clock::now() - waiting_since;
        counters.stall_ns += (uint64_t) std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count();
    }
}

const void * emc_cache::data(const emc_call * call, int i) const {
    const emc_piece & p = *call->pieces[i];
    return p.failed ? nullptr : p.data;
}

bool emc_cache::release(emc_call * call) {
    EMC_HAND_OVER();
    if (call->users.fetch_sub(1, std::memory_order_acq_rel) != 1) {
        return false;
    }
    std::vector<emc_read> reads;
    {
        std::lock_guard<std::mutex> lock(mutex);
        unpin_all(*call);
        for (int i = 0; i < call->n; ++i) {
            if (call->buffers[i] != EMC_NO_BUFFER) {
                staging->let_go(call->buffers[i]);
            }
        }
        if (streaming == call) {
            streaming = nullptr;
            reads.swap(call->held_back);
            pump(reads);
        }
        free_calls.push_back(call);
    }
    submit(reads);
    return true;
}

void emc_cache::read_done(const emc_read & read, int error) {
    EMC_HAND_OVER();
    std::vector<emc_read> reads;
    emc_call * woken[N_CALLS];
    int n_woken = 0;
    {
        std::lock_guard<std::mutex> lock(mutex);
        const bool  staged = read.layer == STAGED;
        emc_piece & p      = staged ? staging->piece(read.slot) : piece(layers[read.layer], read.slot, read.kind);
        p.failed = p.failed || error;
        p.left  -= 1;
        if (p.left > 0) {
            return;
        }
        counters.pieces_landed += 1;
        counters.errors        += p.failed;
        if (!staged) {
            slot_piece_landed(read);
            follow_guesses(reads);
        } else if (streaming && !staging->holder(read.slot)) {
            pump(reads);  // nobody came for it: its buffer may be what the stream waits for
        }
        for (const auto & call : calls) {
            const bool waits = staged ? staging->holder(read.slot) == call.get() : call->layer == read.layer && call->kind == read.kind;
            if (call->n_waiting > 0 && waits) {
                woken[n_woken++] = call.get();
            }
        }
    }
    submit(reads);
    // the threads of a call wait for the same thing, whichever piece lands next: all of them can go on, and no others
    for (int i = 0; i < n_woken; ++i) {
        woken[i]->landed.notify_all();
    }
}

// The slot stays LOADING, and so is not given away, until all of its pieces are there.
void emc_cache::slot_piece_landed(const emc_read & read) {
    layer_state & layer = layers[read.layer];
    layer.slot_left[read.slot] -= 1;
    (layer.unproven[read.slot] ? guessed_left : asked_left) -= 1;
    if (layer.slot_left[read.slot] > 0) {
        return;
    }
    bool failed = false;
    for (int k = 0; k < (int) layer.layout.kinds.size(); ++k) {
        failed = failed || piece(layer, read.slot, k).failed;
    }
    if (failed) {
        layer.table->fail(read.slot, read.generation);
        counters.guessed_lost     += layer.unproven[read.slot];
        layer.unproven[read.slot]  = 0;
    } else {
        layer.table->complete(read.slot, read.generation);
    }
}

emc_stats emc_cache::stats() const {
    std::lock_guard<std::mutex> lock(mutex);
    emc_stats s = counters;
    const emc_reader_stats r = reader->stats();
    s.ahead_dropped = staging->n_dropped();
    s.read_bytes = r.bytes;
    s.read_ns    = r.ns;
    return s;
}

void emc_cache::check() const {
    std::lock_guard<std::mutex> lock(mutex);
    EMC_CHECK(free_calls.size() == calls.size() && n_waiting == 0);
    uint64_t resident = 0;
    uint64_t unproven = 0;
    for (const layer_state & layer : layers) {
        layer.table->check();
        EMC_CHECK(layer.table->stale() == 0);
        for (emc_slot slot = 0; slot < options.n_slots; ++slot) {
            EMC_CHECK(layer.table->pins(slot) == 0 && layer.slot_left[slot] == 0);
            unproven += layer.unproven[slot];
            EMC_CHECK(layer.table->state(slot) != emc_slot_state::LOADING);
            resident += layer.table->state(slot) == emc_slot_state::READY;
        }
    }
    staging->check();
    EMC_CHECK(!streaming && counters.pieces_landed == counters.pieces_queued);
    EMC_CHECK(asked_left == 0 && guessed_left == 0);
    EMC_CHECK(counters.guessed == counters.guessed_used + counters.guessed_lost + unproven);
    EMC_CHECK(counters.ahead_queued == counters.ahead_used + staging->n_dropped() + staging->n_ahead());
    EMC_CHECK(emc_stats_consistent(counters, resident, layers.size() * (uint64_t) options.n_slots));
}
