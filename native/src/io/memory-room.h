// SPDX-License-Identifier: MIT
// How much memory this process may still take (the smaller of what the machine and its control groups leave), and whether
// anything waits for memory.
#pragma once

#include <cstdint>
#include <string>

// root is "/" on a real machine; a test hands in a tree of its own. 0 if /proc/meminfo cannot be read.
//
// machine:  MemAvailable, which counts clean page cache as free (the process's own mapped pages too)
// cgroup 2: memory.max and memory.high less memory.current plus the group's file pages, for the group and each parent
// cgroup 1: memory.limit_in_bytes less memory.usage_in_bytes plus file pages, likewise
uint64_t emc_memory_room(const std::string & root);

// Whose memory that is: the folder of the control group with the least room, or empty for the machine's.
std::string emc_memory_place(const std::string & root);

// Seconds in all in which something had to wait for memory, or -1 where the kernel does not say: `some total` of the
// process's own control group, or of the machine where groups do not have it.
double emc_memory_waited(const std::string & root);
