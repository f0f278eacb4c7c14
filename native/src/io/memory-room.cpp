// SPDX-License-Identifier: MIT
#include "memory-room.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

static bool read_number(const std::string & path, uint64_t & value) {
    std::ifstream file(path);
    return (bool) (file >> value);  // "max" is no number: no limit
}

// `key value` or `key: value kB` lines
static uint64_t read_key(const std::string & path, const std::string & key) {
    std::ifstream file(path);
    std::string name;
    uint64_t value = 0;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        if (words >> name >> value && name == key) {
            return value;
        }
    }
    return 0;
}

struct group_files {
    const char * limit;
    const char * usage;
    const char * active;    // keys of memory.stat: file pages that the kernel can take back
    const char * inactive;
};

namespace {

struct least_room {
    uint64_t    bytes = 0;
    std::string place;  // folder of the control group that leaves no more; empty: the machine
};

} // namespace

static void group_room(const std::string & folder, const group_files & names, least_room & room) {
    uint64_t limit = 0;
    uint64_t usage = 0;
    if (!read_number(folder + "/" + names.limit, limit) || !read_number(folder + "/" + names.usage, usage)) {
        return;
    }
    const uint64_t file = read_key(folder + "/memory.stat", names.active) + read_key(folder + "/memory.stat", names.inactive);
    const uint64_t held = usage > file ? usage - file : 0;
    const uint64_t left = limit > held ? limit - held : 0;
    if (left < room.bytes) {
        room = { left, folder };
    }
}

static void tree_room(const std::string & mount, std::string group, const group_files & names, least_room & room) {
    while (true) {
        group_room(mount + group, names, room);
        const size_t slash = group.rfind('/');
        if (slash == std::string::npos || group.empty()) {
            return;
        }
        group.resize(slash);
    }
}

static least_room find_room(const std::string & root) {
    least_room room;
    room.bytes = read_key(root + "/proc/meminfo", "MemAvailable:") * 1024;

    // lines are id:controllers:path; version 2 is 0::path
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const size_t first  = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) {
            continue;
        }
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const std::string group       = line.substr(second + 1) == "/" ? "" : line.substr(second + 1);
        if (controllers == ",,") {
            tree_room(root + "/sys/fs/cgroup", group, { "memory.max",  "memory.current", "active_file", "inactive_file" }, room);
            tree_room(root + "/sys/fs/cgroup", group, { "memory.high", "memory.current", "active_file", "inactive_file" }, room);
        } else if (controllers.find(",memory,") != std::string::npos) {
            const group_files v1 = { "memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file", "total_inactive_file" };
            tree_room(root + "/sys/fs/cgroup/memory", group, v1, room);
        }
    }
    return room;
}

uint64_t emc_memory_room(const std::string & root) {
    return find_room(root).bytes;
}

std::string emc_memory_place(const std::string & root) {
    return find_room(root).place;
}

// `some avg10=1.23 avg60=1.23 avg300=1.23 total=123`, in microseconds
static bool read_waited(const std::string & path, double & seconds) {
    std::ifstream file(path);
    std::string line;
    unsigned long long total = 0;
    if (!std::getline(file, line) || sscanf(line.c_str(), "some avg10=%*f avg60=%*f avg300=%*f total=%20llu", &total) != 1) {
        return false;
    }
    seconds = (double) total / 1e6;
    return true;
}

double emc_memory_waited(const std::string & root) {
    double seconds = -1;
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        if (line.compare(0, 3, "0::") == 0 && read_waited(root + "/sys/fs/cgroup" + line.substr(3) + "/memory.pressure", seconds)) {
            return seconds;
        }
    }
    read_waited(root + "/proc/pressure/memory", seconds);
    return seconds;
}
