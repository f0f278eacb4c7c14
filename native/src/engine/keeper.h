// SPDX-License-Identifier: MIT
// Keeps the cache's size in step with memory: a look about once a second, from a thread of its own.
//
// It shrinks the cache when memory gets short and lets it grow again, up to what was asked for (or, with `auto`, as far as
// there is room; several servers with `auto` in one memory have equal parts of it). Whoever may write the request file
// asks for another size while the server runs: a number of MiB; without the file the old size is asked for again.
#pragma once

#include "../core/resize.h"
#include "cache.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

struct emc_keeper_options {
    int         least         = 1;     // slots in each layer: one token cycle
    int         most          = 1;     // as many as the cache was made with
    uint64_t    round_bytes   = 1;
    uint64_t    dense_bytes   = 0;     // file pages that must stay, although they count as room
    uint64_t    reserve_bytes = 0;     // room that must stay
    std::string request_file;          // empty: none
    std::function<uint64_t()>                 room;      // see emc_memory_room
    std::function<double()>                   waited;    // see emc_memory_waited
    std::function<emc_peers_seen(uint64_t, uint64_t)> peers;  // told bytes of slots, and of these untouched; empty: no others
    std::function<void(const std::string &)>  say;       // one line for the log
};

class emc_keeper {
public:
    // The cache outlives it.
    emc_keeper(emc_cache & cache, emc_keeper_options options);
    ~emc_keeper();

    // One look. Not for two threads at once.
    void look();

private:
    int  requested_most();
    void share(emc_size_view & view, uint64_t room);
    void run();

    emc_cache &              cache;
    const emc_keeper_options options;
    std::string              last_request;
    emc_pressure             pressure;
    int                      others = 0;  // seen at the last look
    std::mutex               mutex;  // guards stopping
    std::condition_variable  wake;
    bool                     stopping = false;
    std::thread              thread;
};
