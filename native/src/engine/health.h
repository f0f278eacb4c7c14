// SPDX-License-Identifier: MIT
// The health file: what the cache is and what it has done, as Prometheus text, replaced atomically.
#pragma once

#include "../core/stats.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

struct emc_health {
    bool        on = false;        // mode "cache", else "mmap"
    std::string reason;            // why not
    std::string policy;
    std::string engine;
    bool        direct          = false;
    uint64_t    asked_bytes     = 0;
    uint64_t    delivered_bytes = 0;
    uint64_t    staging_bytes   = 0;
    uint64_t    slots           = 0;  // over all layers
    uint64_t    cycle_bytes     = 0;
    double      cycles          = 0;
    emc_stats   stats;
};

// now is unix time in seconds.
std::string emc_health_text(const emc_health & health, int pid, double now);

// Writes cache-<pid>.prom about once a second while counters move, and every ten seconds while they do not, so that
// age tells a dead process from an idle one. Removes it when destroyed. Trouble with the disk is not the server's:
// a write that fails is tried again at the next turn.
class emc_health_writer {
public:
    emc_health_writer(const std::string & dir, int pid, std::function<emc_health()> read);
    ~emc_health_writer();

    // false, and error says why, if files cannot be made there.
    static bool usable(const std::string & dir, std::string & error);

    const std::string & path() const { return file; }

private:
    void run();
    bool write(const std::string & text) const;

    const std::string           file;
    const std::string           temporary;
    const int                   pid;
    std::function<emc_health()> read;
    std::mutex                  mutex;  // guards stopping
    std::condition_variable     wake;
    bool                        stopping = false;
    std::thread                 thread;
};
