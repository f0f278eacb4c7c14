// SPDX-License-Identifier: MIT
// Other servers whose cache sizes itself in the same memory: each says in a file how much it has, and finds the others'.
//
// The file is `cache-<pid>.share` in a folder that they have in common, with the line `SHARES BYTES UNTOUCHED MAPPED MODEL
// PLACE`. Its owner holds a lock on it for as long as it lives, so what a dead process left counts for nothing. Others may
// write to the folder: names are not followed if they are links, little is read, and a lie can at worst make a cache as
// small as its least, or let it grow until it waits for memory.
#pragma once

#include "../core/types.h"

#include <cstdint>
#include <mutex>
#include <string>

// What one server says of itself, in bytes.
struct emc_claim {
    bool        shares    = true;  // whether it wants an equal part: not if all of its model fits
    uint64_t    bytes     = 0;     // of its slots
    uint64_t    untouched = 0;     // of these, not yet backed by memory
    uint64_t    mapped    = 0;     // of the model, served from the page cache
    std::string model;             // the same word for the same file, whose pages all servers have in common; no blanks
};

class emc_peers {
public:
    // An empty dir, or one that cannot be written, finds nobody.
    emc_peers(const std::string & dir, int pid);
    ~emc_peers();
    emc_peers(const emc_peers &) = delete;
    emc_peers & operator=(const emc_peers &) = delete;

    // For any thread. Says what this process has, and where its memory comes from (see emc_memory_place), and returns
    // those of the same place.
    emc_peers_seen exchange(const emc_claim & own, const std::string & place);

private:
    const std::string dir;
    const std::string name;
    std::mutex        mutex;  // guards what the file says
    int               fd = -1;
};
