// SPDX-License-Identifier: MIT
#include "peers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <map>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static constexpr char   PREFIX[] = "cache-";
static constexpr char   SUFFIX[] = ".share";
static constexpr int    FILES_MAX = 256;
static constexpr size_t TEXT_MAX  = 4096;

emc_peers::emc_peers(const std::string & dir_, int pid) : dir(dir_), name(PREFIX + std::to_string(pid) + SUFFIX) {
    if (dir.empty()) {
        return;
    }
    // under another name until it is locked: without a lock it is a dead process's
    const std::string fresh = dir + "/." + name;
    unlink(fresh.c_str());
    fd = open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) != 0 || rename(fresh.c_str(), (dir + "/" + name).c_str()) != 0)) {
        unlink(fresh.c_str());
        close(fd);
        fd = -1;
    }
}

emc_peers::~emc_peers() {
    if (fd >= 0) {
        unlink((dir + "/" + name).c_str());
        close(fd);
    }
}

// What a lie makes too large stays the largest number.
static void add(uint64_t & sum, uint64_t bytes) {
    sum += std::min(bytes, UINT64_MAX - sum);
}

static bool read_number(std::istream & words, uint64_t & number) {
    std::string word;
    if (!(words >> word) || word.size() > 19 || word.find_first_not_of("0123456789") != std::string::npos) {
        return false;
    }
    number = std::stoull(word);
    return true;
}

// Whether the file's owner lives and says what can be understood. What a dead one left is removed.
static bool read_living(const std::string & path, emc_claim & claim, std::string & place) {
    const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    struct stat info;
    const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    const bool dead    = regular && flock(fd, LOCK_SH | LOCK_NB) == 0;
    char text[TEXT_MAX];
    const ssize_t n = regular && !dead && errno == EWOULDBLOCK ? read(fd, text, sizeof(text)) : -1;
    if (dead) {
        unlink(path.c_str());
    }
    close(fd);
    const std::string said(text, n > 0 ? (size_t) n : 0);
    std::istringstream words(said.substr(0, said.find('\n')));
    uint64_t shares = 0;
    if (said.find('\n') == std::string::npos || !read_number(words, shares) || shares > 1 || !read_number(words, claim.bytes) ||
        !read_number(words, claim.untouched) || !read_number(words, claim.mapped) || !(words >> claim.model) || words.get() != ' ') {
        return false;
    }
    claim.shares = shares == 1;
    std::getline(words, place);
    return true;
}

emc_peers_seen emc_peers::exchange(const emc_claim & own, const std::string & place) {
    emc_peers_seen seen;
    if (fd < 0) {
        return seen;
    }
    std::lock_guard<std::mutex> lock(mutex);
    const std::string text = std::to_string(own.shares) + " " + std::to_string(own.bytes) + " " + std::to_string(own.untouched) + " " +
        std::to_string(own.mapped) + " " + own.model + " " + place + "\n";
    if (text.size() > TEXT_MAX || pwrite(fd, text.data(), text.size(), 0) != (ssize_t) text.size() || ftruncate(fd, (off_t) text.size()) != 0) {
        return seen;
    }
    DIR * folder = opendir(dir.c_str());
    if (!folder) {
        return seen;
    }
    int files = 0;
    std::map<std::string, uint64_t> mapped;
    while (const dirent * entry = readdir(folder)) {
        const std::string other = entry->d_name;
        const size_t      ends  = other.size() - std::min(other.size(), strlen(SUFFIX));
        if (other == name || other.compare(0, strlen(PREFIX), PREFIX) != 0 || other.compare(ends, std::string::npos, SUFFIX) != 0) {
            continue;
        }
        if (++files > FILES_MAX) {
            break;
        }
        emc_claim   claim;
        std::string their_place;
        if (!read_living(dir + "/" + other, claim, their_place) || their_place != place) {
            continue;
        }
        seen.others += claim.shares;
        add(seen.bytes, claim.bytes);
        add(seen.untouched, claim.untouched);
        if (claim.model != own.model) {
            mapped[claim.model] = std::max(mapped[claim.model], claim.mapped);
        }
    }
    closedir(folder);
    for (const auto & model : mapped) {
        add(seen.mapped, model.second);
    }
    return seen;
}
