// SPDX-License-Identifier: MIT
// How far one read has come. What a result of the system means, for every reader alike:
//
//   all needed bytes             done
//   fewer than needed            again from the last whole page that arrived (a direct read must start on a page)
//   no further page              ENODATA: the file is shorter than its header says, or was truncated
//   EINTR, EAGAIN                again, at most EMC_READ_RETRIES times in a row
//   any other errno              reported as it is; the caller computes from the mapping
#pragma once

#include "../core/types.h"

#include <cerrno>

constexpr int EMC_READ_RETRIES = 100;

struct emc_read_progress {
    uint64_t got     = 0;  // whole pages that arrived: the next attempt starts here
    int      retries = 0;

    // result: bytes of [got, length) that arrived, or -errno. true: try again from got. Else error is 0 or the errno.
    bool again(int64_t result, uint64_t needed, int & error) {
        if (result < 0) {
            error = (int) -result;
            return (error == EINTR || error == EAGAIN) && retries++ < EMC_READ_RETRIES;
        }
        retries = 0;
        const uint64_t end   = got + (uint64_t) result;
        const uint64_t pages = end / EMC_ALIGN * EMC_ALIGN;
        error = end >= needed ? 0 : ENODATA;
        if (end >= needed || pages == got) {
            return false;
        }
        got = pages;
        return true;
    }
};
