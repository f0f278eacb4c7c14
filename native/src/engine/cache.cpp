// SPDX-License-Identifier: MIT
#include "cache.h"

#include "../core/budget.h"
#include "../core/check.h"
#include "../core/order.h"
#include "../io/slab.h"
#include "../io/window.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>

// More contexts than this computing at the same moment: the surplus uses the mapping.
static constexpr int N_CALLS = 16;

uint64_t emc_layer_slot_bytes(const emc_layer & layer) {
    uint64_t bytes = 0;
    for (const emc_extent & kind : layer.kinds) {
        bytes += emc_piece_bytes(kind.stride);
    }
    return bytes;
}

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
    options(options_), trace(std::move(trace_)), reader(std::move(reader_)) {
    EMC_CHECK(options.n_slots > 0 && options.read_bytes >= EMC_ALIGN && options.read_bytes % EMC_ALIGN == 0);
    for (const emc_layer & layout : layouts) {
        slab_bytes += emc_layer_slot_bytes(layout) * (uint64_t) options.n_slots;
    }
    // one slab for the cache's life: pages are never given back on eviction, since to fault them in again costs
    // more than it saves
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
        auto policy     = emc_policy_make(options.policy, options.n_slots);
        layer.table     = std::make_unique<emc_slot_table>(layer.layout.n_experts, options.n_slots, std::move(policy));
        next += layer.slot_bytes * (uint64_t) options.n_slots;
        max_experts = std::max(max_experts, layer.layout.n_experts);
    }

    for (int i = 0; i < N_CALLS; ++i) {
        auto call = std::make_unique<emc_call>();
        call->experts.resize(max_experts);
        call->order.resize(max_experts);
        call->slots.resize(max_experts);
        call->pieces.resize(max_experts);
        call->ready.resize(max_experts);
        free_calls.push_back(call.get());
        calls.push_back(std::move(call));
    }
}

emc_cache::~emc_cache() {
    EMC_CHECK(!slab || free_calls.size() == calls.size());
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
            if (known.kinds & (1u << kind)) {
                known.kinds = 1u << kind;
                return true;
            }
            known.kinds |= 1u << kind;
            return false;
        }
    }
    layer.batches[layer.next_batch] = { batch, 1u << kind };
    layer.next_batch = (layer.next_batch + 1) % (int) (sizeof(layer.batches) / sizeof(layer.batches[0]));
    return true;
}

void emc_cache::queue_piece(layer_state & layer, int layer_id, emc_slot slot, int kind, std::vector<emc_read> & reads) {
    const emc_extent & extent = layer.layout.kinds[kind];
    const emc_window   window = emc_window_of(extent.offset + extent.stride * (uint64_t) layer.table->expert(slot), extent.stride);
    const uint64_t     n_cuts = emc_window_cuts(window, options.read_bytes);
    char *             buffer = layer.memory + layer.slot_bytes * (uint64_t) slot + layer.piece_at[kind];

    emc_piece & p = piece(layer, slot, kind);
    EMC_CHECK(p.left.load() == 0 && window.end - window.begin <= emc_piece_bytes(extent.stride));
    p.data = buffer + window.lead;
    p.failed.store(false, std::memory_order_relaxed);
    p.left.store((int32_t) n_cuts, std::memory_order_release);

    for (uint64_t i = 0; i < n_cuts; ++i) {
        const emc_cut cut = emc_window_cut(window, extent.stride, options.read_bytes, i);
        emc_read read;
        read.file       = extent.file;
        read.offset     = cut.offset;
        read.length     = cut.length;
        read.needed     = cut.needed;
        read.buffer     = buffer + (cut.offset - window.begin);
        read.layer      = layer_id;
        read.slot       = slot;
        read.kind       = kind;
        read.generation = layer.table->generation(slot);
        reads.push_back(read);
    }
    counters.pieces_queued += 1;
}

emc_call * emc_cache::acquire(int layer_id, int kind, const int32_t * experts, int n, int64_t rows, const void * batch, int users) {
    layer_state &    layer   = layers.at(layer_id);
    emc_slot_table & table   = *layer.table;
    const emc_phase  phase   = emc_phase_of(rows);
    const int        n_kinds = (int) layer.layout.kinds.size();
    std::vector<emc_read> reads;
    emc_call * call = nullptr;
    {
        std::lock_guard<std::mutex> lock(mutex);
        const bool first = begins_batch(layer, kind, batch);
        if (first && layer_id == 0 && phase == EMC_DECODE) {
            counters.decode_tokens += (uint64_t) rows;
        }
        if (n == 0 || n > options.n_slots || free_calls.empty()) {
            counters.bypass[phase] += 1;
            return nullptr;
        }

        // pin what is there before looking for victims, so that no expert of this batch evicts another
        call = free_calls.back();
        int n_miss = 0;
        for (int i = 0; i < n; ++i) {
            call->experts[i] = experts[i];
            call->slots[i]   = table.find(experts[i]);
            if (call->slots[i] == EMC_NO_SLOT) {
                n_miss += 1;
            } else {
                table.pin(call->slots[i]);
            }
        }
        if (n_miss > table.available()) {
            for (int i = 0; i < n; ++i) {
                if (call->slots[i] != EMC_NO_SLOT) {
                    table.unpin(call->slots[i]);
                }
            }
            counters.bypass[phase] += 1;
            return nullptr;
        }
        free_calls.pop_back();
        call->n     = n;
        call->layer = layer_id;
        call->users.store(users, std::memory_order_relaxed);

        if (first) {
            tick += 1;
            if (trace) {
                trace->begin(layer_id, rows);
            }
        }
        std::vector<emc_slot> loading;
        for (int i = 0; i < n; ++i) {
            if (call->slots[i] != EMC_NO_SLOT) {
                if (first) {
                    table.hit(call->slots[i], tick);
                    counters.lookups[phase] += 1;
                    counters.hits[phase]    += 1;
                    if (trace) {
                        trace->hit(experts[i]);
                    }
                }
            } else {
                // a later product of a batch finds its expert gone only if another context took the slot in between:
                // then it is looked up, and read, once more
                int evicted = -1;
                const emc_slot slot = table.begin_load(experts[i], tick, &evicted);
                EMC_CHECK(slot != EMC_NO_SLOT);
                call->slots[i] = slot;
                layer.slot_left[slot] = n_kinds;
                loading.push_back(slot);
                counters.lookups[phase] += 1;
                counters.misses[phase]  += 1;
                counters.evictions      += evicted >= 0;
                if (trace && first) {
                    trace->miss(experts[i], evicted);
                }
            }
        }
        if (trace && first) {
            trace->end();
        }
        // the executing kind of every missing expert, then the kinds in the order in which they will execute
        for (int step = 0; step < n_kinds; ++step) {
            const int k = (kind + step) % n_kinds;
            for (const emc_slot slot : loading) {
                queue_piece(layer, layer_id, slot, k, reads);
            }
        }
        for (int i = 0; i < n; ++i) {
            call->pieces[i] = &piece(layer, call->slots[i], kind);
        }
    }
    if (!reads.empty()) {
        reader->submit(reads.data(), reads.size());
    }
    emc_order_ready_first((size_t) n, [call](size_t i) { return call->pieces[i]->left.load(std::memory_order_acquire) == 0; },
        call->ready.data(), call->order.data());
    return call;
}

const void * emc_cache::wait(emc_call * call, int i) {
    emc_piece & p = *call->pieces[i];
    if (p.left.load(std::memory_order_acquire) != 0) {
        std::unique_lock<std::mutex> lock(mutex);
        if (n_waiting++ == 0) {
            waiting_since = std::chrono::steady_clock::now();
        }
        landed.wait(lock, [&] { return p.left.load(std::memory_order_acquire) == 0; });
        if (--n_waiting == 0) {
            const auto waited = std::chrono::steady_clock::now() - waiting_since;
            counters.stall_ns += (uint64_t) std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count();
        }
    }
    return p.failed.load(std::memory_order_relaxed) ? nullptr : p.data;
}

bool emc_cache::release(emc_call * call) {
    if (call->users.fetch_sub(1, std::memory_order_acq_rel) != 1) {
        return false;
    }
    std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < call->n; ++i) {
        layers[call->layer].table->unpin(call->slots[i]);
    }
    free_calls.push_back(call);
    return true;
}

void emc_cache::read_done(const emc_read & read, int error) {
    layer_state & layer = layers[read.layer];
    emc_piece &   p     = piece(layer, read.slot, read.kind);
    if (error) {
        p.failed.store(true, std::memory_order_relaxed);
    }
    if (p.left.fetch_sub(1, std::memory_order_acq_rel) != 1) {
        return;
    }
    // The piece may be used from here on. The slot stays LOADING, and so is not given away, until the table hears of it.
    bool wake = false;
    {
        std::lock_guard<std::mutex> lock(mutex);
        counters.pieces_landed += 1;
        counters.errors        += p.failed.load(std::memory_order_relaxed);
        layer.slot_left[read.slot] -= 1;
        if (layer.slot_left[read.slot] == 0) {
            bool failed = false;
            for (int k = 0; k < (int) layer.layout.kinds.size(); ++k) {
                failed = failed || piece(layer, read.slot, k).failed.load(std::memory_order_relaxed);
            }
            if (failed) {
                layer.table->fail(read.slot, read.generation);
            } else {
                layer.table->complete(read.slot, read.generation);
            }
        }
        wake = n_waiting > 0;
    }
    if (wake) {
        landed.notify_all();
    }
}

emc_stats emc_cache::stats() const {
    std::lock_guard<std::mutex> lock(mutex);
    emc_stats s = counters;
    const emc_reader_stats r = reader->stats();
    s.read_bytes = r.bytes;
    s.read_ns    = r.ns;
    return s;
}

void emc_cache::check() const {
    std::lock_guard<std::mutex> lock(mutex);
    EMC_CHECK(free_calls.size() == calls.size() && n_waiting == 0);
    uint64_t resident = 0;
    for (const layer_state & layer : layers) {
        layer.table->check();
        EMC_CHECK(layer.table->stale() == 0);
        for (emc_slot slot = 0; slot < options.n_slots; ++slot) {
            EMC_CHECK(layer.table->pins(slot) == 0 && layer.slot_left[slot] == 0);
            EMC_CHECK(layer.table->state(slot) != emc_slot_state::LOADING);
            resident += layer.table->state(slot) == emc_slot_state::READY;
        }
    }
    EMC_CHECK(counters.pieces_landed == counters.pieces_queued);
    EMC_CHECK(emc_stats_consistent(counters, resident, layers.size() * (uint64_t) options.n_slots));
}
