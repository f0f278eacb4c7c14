// SPDX-License-Identifier: MIT
#include "file-set.h"

#include "../core/types.h"
#include "io-calls.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

emc_file_set::~emc_file_set() {
    for (const int fd : files) {
        close(fd);
    }
}

// open() with O_DIRECT may succeed where the first read then fails, so one page is read as the proof. Drives with larger
// blocks than a page refuse that too.
int emc_file_set::direct_read_error(int fd) const {
    void * page = nullptr;
    if (posix_memalign(&page, EMC_ALIGN, EMC_ALIGN) != 0) {
        return ENOMEM;
    }
    int64_t result;
    do {
        result = pread(fd, page, EMC_ALIGN, 0);
        result = result < 0 ? -errno : result;
        result = calls ? calls->read_result(result, page, EMC_ALIGN, 0) : result;
    } while (result == -EINTR);
    free(page);
    return result < 0 ? (int) -result : 0;
}

int emc_file_set::add(const std::string & path, bool allow_direct) {
    int fd = -1;
    std::string refusal = "O_DIRECT not asked for";
    if (allow_direct) {
        fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (fd < 0) {
            refusal = std::string("the file system refuses O_DIRECT (") + strerror(errno) + ")";
        } else if (const int error = direct_read_error(fd)) {
            refusal = "the drive refuses direct reads of " + std::to_string(EMC_ALIGN) + " bytes (" + strerror(error) + ")";
            close(fd);
            fd = -1;
        }
    }
    if (fd < 0) {
        fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            why = "cannot open " + path + ": " + strerror(errno);
            return -1;
        }
        // the kernel's read-ahead would fetch what no expert asked for
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
        is_direct = false;
        why = refusal;
    }
    files.push_back(fd);
    return (int) files.size() - 1;
}

uint64_t emc_file_set::bytes(int index) const {
    const off_t end = lseek(fd(index), 0, SEEK_END);
    return end < 0 ? 0 : (uint64_t) end;
}

std::string emc_file_set::identity(int index) const {
    struct stat info;
    return fstat(fd(index), &info) == 0 ? std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino) : "unknown";
}

int emc_file_set::add_fd(int fd, bool allow_direct) {
    return add("/proc/self/fd/" + std::to_string(fd), allow_direct);
}
