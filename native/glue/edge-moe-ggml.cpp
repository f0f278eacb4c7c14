// SPDX-License-Identifier: MIT
// The only file that knows both ggml and the cache; the only one that reads the environment or prints.
#include "edge-moe-ggml.h"

#include "routers.h"

#include "../src/core/budget.h"
#include "../src/core/config.h"
#include "../src/core/layout.h"
#include "../src/core/saturating.h"
#include "../src/engine/cache.h"
#include "../src/engine/health.h"
#include "../src/engine/keeper.h"
#include "../src/io/file-set.h"
#include "../src/io/memory-room.h"
#include "../src/io/peers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace {

struct served_model;

struct served_tensor {
    int      layer;
    int      kind;
    uint64_t stride;
    int64_t  n_experts;
};

} // namespace

struct edge_moe_call {
    std::shared_ptr<served_model> model;
    emc_call *                    inner = nullptr;
    std::vector<int32_t>          used;    // experts of the batch, by id
    std::vector<int32_t>          unused;  // the others
    std::vector<int32_t>          guesses;
    std::vector<int32_t>          tail;    // [rows][used], what a prompt's last rows chose
    std::vector<int32_t>          entry;   // by expert: index into used
};

namespace {

constexpr int GUESSES_MAX = 16;  // experts that are guessed for a token in a layer
constexpr int TAIL_ROWS   = 64;  // of a prompt, that the policy hears of: later ones count most, and each costs a microsecond

// How long a server that comes waits for the others to give it its part: a look of theirs, and a while to let go.
constexpr auto PEERS_WAIT = std::chrono::seconds(5);
constexpr auto PEERS_LOOK = std::chrono::milliseconds(100);
// Room that a cache which grows leaves at least; a sixteenth of what there was at load, if that is more.
constexpr uint64_t ROOM_LEFT_MIN = 64ull << 20;

// The model that the cache serves. Immutable after construction but for the free list.
struct served_model {
    std::set<const void *>                            mappings;
    std::unordered_map<const void *, served_tensor>   tensors;  // by address of the data
    emc_file_set                                      files;
    emc_health                                        health;   // stats are filled in when it is read
    std::unique_ptr<emc_cache>                        cache;    // after files: its reader uses them
    std::shared_ptr<emc_peers>                        peers;    // of auto: other servers in the same memory
    std::unique_ptr<emc_keeper>                       keeper;   // after both: it resizes the one and asks the other
    uint64_t                                          round_bytes = 0;  // one slot in every layer
    int                                               n_layers    = 0;
    int                                               n_used      = 0;

    // auto: the last word is had when the first batch is computed, since then the context and its buffers exist
    bool                                              automatic     = false;
    emc_claim                                         claim;           // of a model that has no slots
    uint64_t                                          expert_bytes  = 0;
    uint64_t                                          dense_bytes   = 0;
    uint64_t                                          reserve_bytes = 0;  // room that stays
    std::once_flag                                    settled;
    std::atomic<bool>                                 at_rest{false};     // every batch uses the mapping, and why
    std::string                                       rest_reason;

    // what guesses at each cached layer's choice, or null; scratch inside, so one thread at a time
    std::vector<std::unique_ptr<emc_router>>          routers;
    std::mutex                                        guessing; // guards routers
    std::mutex                                        mutex;    // guards free_calls
    std::vector<std::unique_ptr<edge_moe_call>>       free_calls;
};

// One cache a process: the first model that can have it. Never destroyed, so that threads which still run at exit
// find it alive.
struct registry {
    std::mutex                         mutex;       // guards all below
    std::shared_ptr<served_model>      model;
    std::set<const void *>             health_of;   // mappings of the model that the health file describes
    std::unique_ptr<emc_health_writer> health;
    std::shared_ptr<emc_peers>         peers;       // of that model: with or without a cache it needs a part of memory

    std::atomic<bool>                  active{false};  // model != nullptr, for the path that must cost nothing
};

registry & the_registry() {
    static registry * r = new registry;
    return *r;
}

const emc_config & settings() {
    static std::mutex mutex;
    static std::unique_ptr<emc_config> parsed;
    std::lock_guard<std::mutex> lock(mutex);
    if (!parsed) {
        auto config = std::make_unique<emc_config>();
        std::string error;
        if (!emc_config_parse([](const char * name) { return (const char *) getenv(name); }, *config, error)) {
            throw std::invalid_argument(error);
        }
        if (!config->stats_dir.empty() && !emc_health_writer::usable(config->stats_dir, error)) {
            throw std::invalid_argument("EDGE_MOE_STATS_DIR is \"" + config->stats_dir +
                "\": it accepts a directory that this user may write to (" + error + ")");
        }
        parsed = std::move(config);
    }
    return *parsed;
}

// blk.N.ffn_{gate,gate_up,up,down}_exps.weight: the layer, and the place in the order of execution. ggml computes
// gate before up whatever the order in which the graph was made.
bool parse_name(const char * name, int & layer, int & place) {
    static const struct { const char * text; int place; } kinds[] = {
        { "ffn_gate_exps.weight", 0 }, { "ffn_gate_up_exps.weight", 0 }, { "ffn_up_exps.weight", 1 }, { "ffn_down_exps.weight", 2 },
    };
    const char * rest = nullptr;
    layer = emc_tensor_layer(name, &rest);
    if (layer < 0) {
        return false;
    }
    for (const auto & kind : kinds) {
        if (strcmp(rest, kind.text) == 0) {
            place = kind.place;
            return true;
        }
    }
    return false;
}

std::string mib(uint64_t bytes) {
    return std::to_string(bytes >> 20) + " MiB";
}

emc_health current_health(const std::shared_ptr<served_model> & model, emc_health health) {
    if (model && model->at_rest.load(std::memory_order_acquire)) {
        health.on              = false;
        health.reason          = model->rest_reason;
        health.delivered_bytes = 0;
        health.staging_bytes   = 0;
        health.slots           = 0;
        health.cycles          = 0;
    } else if (model) {
        const uint64_t slots   = (uint64_t) model->cache->n_slots();
        health.stats           = model->cache->stats();
        health.slots           = slots * (uint64_t) model->n_layers;
        health.delivered_bytes = slots * model->round_bytes + health.staging_bytes;
        health.cycles          = (double) slots / model->n_used;
    }
    return health;
}

// Memory for this model's slots: what there is less what other servers in it are about to take, or have mapped.
uint64_t room_beside(const emc_peers_seen & seen) {
    const uint64_t room = emc_memory_room("");
    return room - std::min(room, emc_sum(seen.mapped, seen.untouched));
}

// REQUIRES: the registry's mutex is held.
void describe(registry & r, const std::set<const void *> & mappings, const emc_health & health, const std::shared_ptr<served_model> & model,
    const std::shared_ptr<emc_peers> & peers) {
    r.health.reset();  // takes the old file away before the new one comes
    r.health_of = mappings;
    r.peers = peers;
    r.health = std::make_unique<emc_health_writer>(settings().stats_dir, (int) getpid(),
        [health, model] { return current_health(model, health); });
    static const bool at_exit = atexit([] {
        registry & all = the_registry();
        std::lock_guard<std::mutex> lock(all.mutex);
        all.health.reset();
        all.peers.reset();
    }) == 0;
    (void) at_exit;
}

} // namespace

//
// the loader's side
//

struct edge_moe_loader::impl {
    struct tensor_place {
        const ggml_tensor * tensor;
        int                 fd;
        uint64_t            offset;
        bool                mapped;
    };
    std::map<int, std::map<int, tensor_place>> layers;  // experts, by layer and place in the order of execution
    std::vector<const ggml_tensor *>           dense;   // served from the mapping
    edge_moe_routers                           routers;
    bool                                       fits = false;  // in memory, experts and all
    std::set<const void *>                     mappings;

    // REQUIRES: the registry's mutex is held.
    std::string decide(served_model & model, int n_experts, int n_used, bool mapped);
};

edge_moe_loader::edge_moe_loader() : pimpl(std::make_unique<impl>()) {}
edge_moe_loader::~edge_moe_loader() = default;

bool edge_moe_reads(const char * tensor_name) {
    int layer = 0;
    int place = 0;
    return settings().wanted() && parse_name(tensor_name, layer, place);
}

void edge_moe_loader::add(const struct ggml_tensor * tensor, int fd, const void * mapping, uint64_t offset) {
    const bool in_mapping = tensor->data == (const char *) mapping + offset;
    pimpl->mappings.insert(mapping);
    pimpl->routers.add(tensor, fd, offset);
    int layer = 0;
    int place = 0;
    if (parse_name(tensor->name, layer, place) && tensor->ne[2] > 1 && tensor->ne[3] == 1) {
        // weights that were copied (repacked, or on a GPU) are not ours to serve
        const bool plain = in_mapping && ggml_nbytes(tensor) == tensor->nb[2] * (size_t) tensor->ne[2];
        pimpl->layers[layer][place] = { tensor, fd, offset, plain };
    } else if (in_mapping) {
        pimpl->dense.push_back(tensor);
    }
}

// Fills in the model, or returns why it cannot be served.
std::string edge_moe_loader::impl::decide(served_model & model, int n_experts, int n_used, bool mapped) {
    const emc_config & config = settings();
    emc_health & health = model.health;
    if (!config.wanted()) {
        return config.is_set ? "EDGE_MOE_CACHE_MIB is 0" : "EDGE_MOE_CACHE_MIB is not set";
    }
    if (n_experts == 0 || (mapped && layers.empty())) {
        return "the model has no experts";
    }
    if (!mapped) {
        return "the model is not memory-mapped; start with --load-mode mmap";
    }
    model.mappings = mappings;

    std::vector<emc_layer> cached;
    std::vector<int>       numbers;  // of the cached layers
    std::map<int, int>     file_of;  // fd -> index in files
    emc_budget_request     request;
    for (const auto & layer : layers) {
        emc_layer layout;
        bool whole = true;
        for (const auto & kind : layer.second) {
            const tensor_place & p = kind.second;
            whole = whole && p.mapped && p.tensor->ne[2] == layer.second.begin()->second.tensor->ne[2];
        }
        if (!whole) {
            continue;  // a layer on the GPU, or repacked
        }
        for (const auto & kind : layer.second) {
            const tensor_place & p = kind.second;
            if (!file_of.count(p.fd)) {
                const int index = model.files.add_fd(p.fd);
                if (index < 0) {
                    return model.files.reason();
                }
                file_of[p.fd] = index;
            }
            const emc_extent extent = { file_of[p.fd], p.offset, p.tensor->nb[2] };
            const std::string fault = emc_extent_fault(extent, p.tensor->ne[2], model.files.bytes(extent.file));
            if (!fault.empty()) {
                return std::string(p.tensor->name) + ": " + fault;
            }
            model.tensors[p.tensor->data] = { (int) cached.size(), (int) layout.kinds.size(), p.tensor->nb[2], p.tensor->ne[2] };
            layout.n_experts = (int) p.tensor->ne[2];
            layout.kinds.push_back(extent);
        }
        for (const emc_extent & kind : layout.kinds) {
            request.piece_bytes = std::max(request.piece_bytes, emc_piece_bytes(kind.stride));
        }
        request.round_bytes  = emc_sum(request.round_bytes, emc_layer_slot_bytes(layout));
        request.n_experts    = std::max(request.n_experts, layout.n_experts);
        cached.push_back(std::move(layout));
        numbers.push_back(layer.first);
    }
    if (cached.empty()) {
        return "no layer computes its experts from the mapped file; start with --cpu-moe --no-repack --no-host";
    }

    request.n_used      = n_used;
    request.automatic   = config.automatic;
    request.asked_bytes = config.cache_mib << 20;
    uint64_t       room_bytes  = emc_memory_room("");
    uint64_t       dense_bytes = 0;
    emc_peers_seen seen;
    for (const ggml_tensor * tensor : dense) {
        dense_bytes = emc_sum(dense_bytes, ggml_nbytes(tensor));
    }
    if (config.automatic) {
        const uint64_t all_bytes = emc_product(request.round_bytes, (uint64_t) request.n_experts);
        const uint64_t staging   = emc_product(request.piece_bytes, EMC_STAGING);
        const uint64_t cycle     = emc_product(request.round_bytes, (uint64_t) n_used);
        // What there is may be other servers', until they see that they have to share: their keepers look once a second. One
        // cycle is enough to begin with; what the part comes to is seen when the context has its memory.
        std::shared_ptr<emc_peers> & ours = the_registry().peers;  // perhaps of an earlier model, which has no cache
        model.peers = ours ? ours : std::make_shared<emc_peers>(config.stats_dir, (int) getpid());
        model.claim.mapped = dense_bytes;
        model.claim.model  = model.files.identity(0);
        const auto waits_until = std::chrono::steady_clock::now() + PEERS_WAIT;
        while (true) {
            seen       = model.peers->exchange(model.claim, emc_memory_place(""));
            room_bytes = room_beside(seen);
            request.asked_bytes = emc_budget_auto(room_bytes, dense_bytes, cycle, all_bytes, staging);
            if (seen.others && request.asked_bytes == 0 && room_bytes >= emc_sum(emc_sum(dense_bytes, ROOM_LEFT_MIN), emc_sum(staging, cycle))) {
                request.asked_bytes = cycle + staging;
            }
            if (!seen.others || request.asked_bytes > 0 || std::chrono::steady_clock::now() >= waits_until) {
                break;
            }
            std::this_thread::sleep_for(PEERS_LOOK);
        }
        if (request.asked_bytes >= all_bytes) {
            fits = true;
            model.claim.shares = false;
            model.claim.mapped = emc_sum(dense_bytes, all_bytes);
            model.peers->exchange(model.claim, emc_memory_place(""));
            return "auto: the model fits in memory";
        }
    }
    const emc_budget budget = emc_budget_fit(request);
    health.asked_bytes = request.asked_bytes;
    health.cycle_bytes = budget.cycle_bytes;
    if (budget.slots == 0) {
        return budget.reason;
    }

    std::string error;
    std::unique_ptr<emc_trace_writer> trace;
    if (!config.trace.empty()) {
        const std::string header = "edge-moe-trace 1 layers=" + std::to_string(cached.size()) + " experts=" +
            std::to_string(request.n_experts) + " slots=" + std::to_string(budget.slots) + " policy=" + config.policy;
        trace = emc_trace_writer::make(config.trace, header, error);
        if (!trace) {
            throw std::invalid_argument("EDGE_MOE_TRACE is \"" + config.trace + "\": it accepts a file that can be written (" + error + ")");
        }
    }

    const size_t      n_layers = cached.size();
    emc_cache_options options;
    // what auto leaves for caches and buffers that do not exist yet may turn out to be more than they take, and others may go
    options.n_slots    = config.automatic ? (int) std::min<uint64_t>((uint64_t) request.n_experts,
        std::max<uint64_t>((uint64_t) budget.slots, emc_sum(room_bytes, seen.bytes) / request.round_bytes)) : budget.slots;
    options.n_staging  = budget.staging;
    options.read_bytes = (uint64_t) config.read_kib * 1024;
    options.policy     = config.policy;
    options.on_trial   = config.lookahead == emc_lookahead_mode::AUTOMATIC;
    if (config.lookahead != emc_lookahead_mode::OFF) {
        model.routers     = routers.make(numbers);
        for (size_t i = 0; i < n_layers; ++i) {
            if (model.routers[i] && model.routers[i]->n_experts() != cached[i].n_experts) {
                model.routers[i].reset();  // it would guess experts that the layer does not have
            }
        }
        options.n_guesses = std::min({ n_used + (n_used + 1) / 2, request.n_experts, GUESSES_MAX });
    }
    int  io_depth = config.io_depth;
    auto reader   = emc_reader_make(config.reader, model.files, io_depth, error);
    if (!reader) {
        return error;
    }
    health.engine = reader->name();
    health.reason = error;
    model.cache = emc_cache::make(std::move(cached), options, std::move(reader), std::move(trace), error);
    if (!model.cache) {
        return error;
    }
    model.cache->resize(budget.slots);
    model.round_bytes   = request.round_bytes;
    model.n_layers      = (int) n_layers;
    model.n_used        = n_used;
    model.automatic     = config.automatic;
    model.dense_bytes   = dense_bytes;
    model.reserve_bytes = std::max(room_bytes / 16, ROOM_LEFT_MIN);
    for (const auto & tensor : model.tensors) {
        model.expert_bytes += tensor.second.stride * (uint64_t) tensor.second.n_experts;
    }

    emc_keeper_options keeping;
    keeping.least         = n_used;
    keeping.most          = options.n_slots;
    keeping.round_bytes   = request.round_bytes;
    keeping.dense_bytes   = dense_bytes;
    keeping.reserve_bytes = model.reserve_bytes;
    keeping.request_file  = config.stats_dir.empty() ? "" : config.stats_dir + "/cache-" + std::to_string(getpid()) + ".want";
    keeping.room          = [] { return emc_memory_room(""); };
    keeping.waited        = [] { return emc_memory_waited(""); };
    if (model.peers) {
        keeping.peers     = [peers = model.peers, claim = model.claim](uint64_t bytes, uint64_t untouched) {
            return peers->exchange({ claim.shares, bytes, untouched, claim.mapped, claim.model }, emc_memory_place(""));
        };
    }
    keeping.say           = [](const std::string & line) { fprintf(stderr, "edge-moe: %s\n", line.c_str()); };
    model.keeper = std::make_unique<emc_keeper>(*model.cache, keeping);

    for (int i = 0; i < 16; ++i) {
        auto call = std::make_unique<edge_moe_call>();
        call->used  .reserve(request.n_experts);
        call->unused.reserve(request.n_experts);
        call->entry .resize (request.n_experts);
        call->guesses.reserve((size_t) GUESSES_MAX * EMC_DECODE_ROWS);
        call->tail   .reserve((size_t) TAIL_ROWS * n_used);
        model.free_calls.push_back(std::move(call));
    }

    health.on              = true;
    health.policy          = config.policy;
    health.direct          = model.files.direct();
    health.delivered_bytes = budget.delivered_bytes;
    health.slots           = (uint64_t) budget.slots * n_layers;
    health.staging_bytes   = request.piece_bytes * (uint64_t) budget.staging;
    health.cycles          = budget.cycles;
    const std::string instead = health.reason.empty() ? "" : " (" + health.reason + ")";
    if (!health.direct) {
        health.reason += (health.reason.empty() ? "" : "; ") + model.files.reason();
    }

    char cycles[32];
    snprintf(cycles, sizeof(cycles), "%.1f", budget.cycles);
    const std::string prefill = budget.staging ? "prefill streams through " + mib(health.staging_bytes) :
        budget.slots == request.n_experts ? "every expert has a slot" : "prefill from the mapping";
    fprintf(stderr, "edge-moe: cache on: %s asked%s, %s delivered, %zu layers x %d slots, %s token cycles, %s, %s, %s x%d%s %s\n",
        mib(request.asked_bytes).c_str(), config.automatic ? " (auto)" : "", mib(budget.delivered_bytes).c_str(), n_layers, budget.slots,
        cycles, prefill.c_str(), config.policy.c_str(), health.engine.c_str(), io_depth, instead.c_str(),
        health.direct ? "O_DIRECT" : ("buffered: " + model.files.reason()).c_str());
    return "";
}

static void read_ahead(const void * data, uint64_t bytes) {
    const uintptr_t page  = (uintptr_t) sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t) data / page * page;
    const uintptr_t end   = (uintptr_t) data + bytes;
#ifdef MADV_POPULATE_READ
    // as the loader maps a model that is none of ours: read and mapped at once, so that no later token pays for it
    if (madvise((void *) begin, end - begin, MADV_POPULATE_READ) == 0) {
        return;
    }
#endif
    posix_madvise((void *) begin, end - begin, POSIX_MADV_WILLNEED);
}

void edge_moe_loader::done(int n_experts, int n_experts_used, bool mapped) {
    const emc_config & config = settings();
    registry & r = the_registry();
    std::lock_guard<std::mutex> lock(r.mutex);
    auto model = std::make_shared<served_model>();
    const std::string reason = r.model ? "another model of this process has the cache" : pimpl->decide(*model, n_experts, n_experts_used, mapped);
    if (!reason.empty()) {
        fprintf(stderr, "edge-moe: cache off: %s\n", reason.c_str());
        model->health.reason = reason;
    }
    fflush(stderr);

    // the loader left the read-ahead of this model to us: all but the experts, unless there is room for them
    if (config.wanted() && !pimpl->layers.empty()) {
        for (const ggml_tensor * tensor : pimpl->dense) {
            read_ahead(tensor->data, ggml_nbytes(tensor));
        }
        for (const auto & layer : pimpl->layers) {
            for (const auto & kind : layer.second) {
                if (pimpl->fits && kind.second.mapped) {
                    read_ahead(kind.second.tensor->data, ggml_nbytes(kind.second.tensor));
                }
            }
        }
    }

    if (r.model) {
        return;  // the health file stays with the model that has the cache
    }
    if (reason.empty()) {
        r.model = model;
        r.active.store(true, std::memory_order_release);
    }
    if (!config.stats_dir.empty()) {
        describe(r, pimpl->mappings, model->health, r.model, model->peers);
    }
}

void edge_moe_unmap(const void * mapping) {
    registry & r = the_registry();
    std::shared_ptr<served_model>      model;
    std::unique_ptr<emc_health_writer> health;
    std::shared_ptr<emc_peers>         peers;
    {
        std::lock_guard<std::mutex> lock(r.mutex);
        if (r.model && r.model->mappings.count(mapping)) {
            r.active.store(false, std::memory_order_release);
            model = std::move(r.model);
        }
        if (r.health_of.count(mapping)) {
            r.health_of.clear();
            health = std::move(r.health);
            peers  = std::move(r.peers);
        }
    }
    // all end here, outside the lock, health first: it reads the model's counters
    health.reset();
    model.reset();
}

//
// the CPU backend's side
//

// What auto does now that the context has its memory: give the mapping the experts, or take all slots that there is room for.
static void settle(served_model & model) {
    const uint64_t own  = (uint64_t) model.cache->n_slots() * model.round_bytes;  // not backed by memory yet
    const auto waits_until = std::chrono::steady_clock::now() + PEERS_WAIT;
    emc_peers_seen seen;
    uint64_t room  = 0;
    uint64_t slots = 0;
    while (true) {
        seen = model.peers->exchange({ true, own, own, model.claim.mapped, model.claim.model }, emc_memory_place(""));
        room = room_beside(seen);
        const uint64_t kept = emc_sum(model.dense_bytes, model.reserve_bytes);
        slots = std::min<uint64_t>((room - std::min(room, kept)) / model.round_bytes, (uint64_t) model.cache->n_slots_most());
        if (!seen.others || slots >= (uint64_t) model.n_used || std::chrono::steady_clock::now() >= waits_until) {
            slots = std::min(slots, (uint64_t) std::max(model.n_used, emc_fair_slots(seen, 0, room, kept, model.round_bytes)));
            break;
        }
        std::this_thread::sleep_for(PEERS_LOOK);
    }
    const bool fits = emc_budget_fits(room, model.dense_bytes, model.expert_bytes);
    if (fits) {
        model.rest_reason  = "auto: the model fits in memory";
        model.claim.shares = false;
        model.claim.mapped = emc_sum(model.dense_bytes, model.expert_bytes);
    } else if (slots < (uint64_t) model.n_used) {
        model.rest_reason = "auto: the context left room for " + mib(slots * model.round_bytes) + ", which is below one token cycle (" +
            mib(model.round_bytes * (uint64_t) model.n_used) + ")";
    } else {
        model.cache->resize((int) slots);
        fprintf(stderr, "edge-moe: auto: %d slots in each layer, %.1f token cycles, now that the context has its memory\n", (int) slots,
            (double) slots / model.n_used);
        return;
    }
    fprintf(stderr, "edge-moe: cache off: %s (room for %s, experts %s, dense weights %s)\n", model.rest_reason.c_str(), mib(room).c_str(),
        mib(model.expert_bytes).c_str(), mib(model.dense_bytes).c_str());
    model.keeper.reset();
    model.peers->exchange(model.claim, emc_memory_place(""));  // what it says from now on
    if (fits) {
        std::map<const void *, uint64_t> in_file_order;
        for (const auto & tensor : model.tensors) {
            in_file_order[tensor.first] = tensor.second.stride * (uint64_t) tensor.second.n_experts;
        }
        for (const auto & tensor : in_file_order) {
            read_ahead(tensor.first, tensor.second);
        }
    }
    model.at_rest.store(true, std::memory_order_release);
}

// From the state that this layer's experts are given to the experts that the next layer will probably choose.
static void look_ahead(served_model & model, int layer, const struct ggml_tensor * state, std::vector<int32_t> & guesses) {
    if ((size_t) layer >= model.routers.size() || !model.routers[(size_t) layer]) {
        return;
    }
    emc_router & router = *model.routers[(size_t) layer];
    const int n = std::min(model.cache->guesses_wanted(), router.n_experts());
    if (n == 0 || state->type != GGML_TYPE_F32 || state->ne[0] != router.width() || state->ne[1] != 1) {
        return;
    }
    std::unique_lock<std::mutex> lock(model.guessing, std::try_to_lock);
    if (!lock) {
        return;
    }
    int32_t top[EMC_DECODE_ROWS][GUESSES_MAX];
    const int n_rows = (int) state->ne[2];
    for (int row = 0; row < n_rows; ++row) {
        router.guess((const float *) ((const char *) state->data + (size_t) row * state->nb[2]), n, top[row]);
    }
    // the best of every token first
    guesses.clear();
    for (int rank = 0; rank < n; ++rank) {
        for (int row = 0; row < n_rows; ++row) {
            if (std::find(guesses.begin(), guesses.end(), top[row][rank]) == guesses.end()) {
                guesses.push_back(top[row][rank]);
            }
        }
    }
    model.cache->foresee(layer, guesses.data(), (int) guesses.size());
}

// The choices of a prompt's last rows. ids: [used, rows].
static emc_tail tail_of(const struct ggml_tensor * ids, std::vector<int32_t> & experts) {
    emc_tail tail;
    tail.width  = (int) ids->ne[0];
    tail.n_rows = (int) std::min<int64_t>(ids->ne[1], TAIL_ROWS);
    experts.clear();
    for (int64_t row = ids->ne[1] - tail.n_rows; row < ids->ne[1]; ++row) {
        for (int64_t i = 0; i < ids->ne[0]; ++i) {
            experts.push_back(*(const int32_t *) ((const char *) ids->data + row * ids->nb[1] + i * ids->nb[0]));
        }
    }
    tail.experts = experts.data();
    return tail;
}

struct edge_moe_call * edge_moe_begin(const struct ggml_tensor * dst, const int64_t * row_counts, int nth) {
    registry & r = the_registry();
    if (!r.active.load(std::memory_order_acquire)) {
        return nullptr;
    }
    std::shared_ptr<served_model> model;
    {
        std::lock_guard<std::mutex> lock(r.mutex);
        model = r.model;
    }
    if (!model) {
        return nullptr;
    }
    const struct ggml_tensor * src0 = dst->src[0];
    const struct ggml_tensor * ids  = dst->src[2];
    const auto found = model->tensors.find(src0->data);
    if (found == model->tensors.end() || found->second.stride != src0->nb[2] || found->second.n_experts != src0->ne[2]) {
        return nullptr;
    }
    const served_tensor & tensor = found->second;
    if (model->automatic) {
        std::call_once(model->settled, [&] { settle(*model); });
        if (model->at_rest.load(std::memory_order_acquire)) {
            return nullptr;
        }
    }

    std::unique_ptr<edge_moe_call> call;
    {
        std::lock_guard<std::mutex> lock(model->mutex);
        if (model->free_calls.empty()) {
            return nullptr;
        }
        call = std::move(model->free_calls.back());
        model->free_calls.pop_back();
    }

    call->used.clear();
    call->unused.clear();
    for (int e = 0; e < (int) tensor.n_experts; ++e) {
        if (row_counts[e] > 0) {
            call->entry[e] = (int32_t) call->used.size();
            call->used.push_back(e);
        } else {
            call->unused.push_back(e);
        }
    }
    const bool prompt_begins = tensor.kind == 0 && emc_phase_of(ids->ne[1]) == EMC_PREFILL;
    call->inner = model->cache->acquire(tensor.layer, tensor.kind, call->used.data(), (int) call->used.size(), ids->ne[1], ids, nth,
        prompt_begins ? tail_of(ids, call->tail) : emc_tail());
    if (!call->inner) {
        std::lock_guard<std::mutex> lock(model->mutex);
        model->free_calls.push_back(std::move(call));
        return nullptr;
    }
    if (tensor.kind == 0 && emc_phase_of(ids->ne[1]) == EMC_DECODE) {
        look_ahead(*model, tensor.layer + 1, dst->src[1], call->guesses);
    }
    call->model = std::move(model);
    return call.release();
}

int edge_moe_nth_expert(struct edge_moe_call * call, int i) {
    const int n_used = (int) call->used.size();
    return i < n_used ? call->used[call->model->cache->next(call->inner, i)] : call->unused[i - n_used];
}

struct ggml_tensor * edge_moe_at(struct edge_moe_call * call, struct ggml_tensor * dst, int expert, struct edge_moe_view * view) {
    if (!call) {
        return dst;
    }
    const void * data = call->model->cache->data(call->inner, call->entry[expert]);
    if (!data) {
        return dst;
    }
    // every kernel addresses expert e at data + e*nb[2]: with the base moved, that is the slot
    view->src0      = *dst->src[0];
    view->src0.data = (char *) const_cast<void *>(data) - (size_t) expert * view->src0.nb[2];
    view->dst        = *dst;
    view->dst.src[0] = &view->src0;
    return &view->dst;
}

void edge_moe_end(struct edge_moe_call * call) {
    if (!call) {
        return;
    }
    // the last thread to come takes the call back; until then it must stay as it is
    std::shared_ptr<served_model> model = call->model;
    if (!model->cache->release(call->inner)) {
        return;
    }
    call->inner = nullptr;
    call->model.reset();
    std::lock_guard<std::mutex> lock(model->mutex);
    model->free_calls.emplace_back(call);
}
