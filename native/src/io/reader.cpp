// SPDX-License-Identifier: MIT
#include "reader.h"

#include <algorithm>

std::unique_ptr<emc_reader> emc_reader_make(const std::string & name, const emc_file_set & files, int & depth, std::string & why) {
    why.clear();
    if (name != "pread") {
        auto reader = emc_reader_uring(files, depth, why);
        if (reader || name == "io_uring") {
            return reader;
        }
    }
    depth = std::min(depth, EMC_POOL_MAX);
    return emc_reader_pread(files, depth);
}
