// SPDX-License-Identifier: MIT
#include "file-set.h"

#include "../core/types.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

emc_file_set::~emc_file_set() {
    for (const int fd : files) {
        close(fd);
    }
}

// open() with O_DIRECT may succeed where the first read then fails, so one page is read as the proof.
static bool direct_read_works(int fd) {
    void * page = nullptr;
    if (posix_memalign(&page, EMC_ALIGN, EMC_ALIGN) != 0) {
        errno = ENOMEM;
        return false;
    }
    ssize_t n;
    do {
        n = pread(fd, page, EMC_ALIGN, 0);
    } while (n < 0 && errno == EINTR);
    const int error = errno;
    free(page);
    errno = error;
    return n >= 0;
}

int emc_file_set::add(const std::string & path, bool allow_direct) {
    int fd = -1;
    int error = 0;
#ifdef O_DIRECT
    if (allow_direct) {
        fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (fd < 0) {
            error = errno;
        } else if (!direct_read_works(fd)) {
            error = errno;
            close(fd);
            fd = -1;
        }
    }
#endif
    if (fd < 0) {
        fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            why = "cannot open " + path + ": " + strerror(errno);
            return -1;
        }
        // the kernel's read-ahead would fetch what no expert asked for
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
        is_direct = false;
        why = allow_direct ? std::string("the file system refuses O_DIRECT (") + strerror(error) + ")" : "O_DIRECT not asked for";
    }
    files.push_back(fd);
    return (int) files.size() - 1;
}

int emc_file_set::add_fd(int fd, bool allow_direct) {
    return add("/proc/self/fd/" + std::to_string(fd), allow_direct);
}
