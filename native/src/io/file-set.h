// SPDX-License-Identifier: MIT
// The files of one model, opened for direct reads where the file system allows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

class emc_io_calls;

class emc_file_set {
public:
    // calls is for tests of the probe; unless null it must outlive the set.
    explicit emc_file_set(emc_io_calls * calls_ = nullptr) : calls(calls_) {}
    ~emc_file_set();
    emc_file_set(const emc_file_set &) = delete;
    emc_file_set & operator=(const emc_file_set &) = delete;

    // Open the file again for reading. Its index, or -1 with reason() saying why.
    // allow_direct = false is for tests of the buffered path.
    int add(const std::string & path, bool allow_direct = true);

    // The same for a file that is already open, so that a file replaced under its name is not mixed in.
    int add_fd(int fd, bool allow_direct = true);

    int fd(int index) const { return files.at(index); }

    // Its size now, of a block device too; 0 if it has none.
    uint64_t bytes(int index) const;

    // A word that is the same for the same file, however it was opened.
    std::string identity(int index) const;

    // true if every file is read around the page cache. Else reason() names the refusal, of the file system or of a
    // drive whose blocks are larger than EMC_ALIGN: the fallback is correct, but then the page cache competes with the
    // slots for memory.
    bool direct() const { return is_direct; }

    const std::string & reason() const { return why; }

private:
    int direct_read_error(int fd) const;

    emc_io_calls *   calls;
    std::vector<int> files;
    bool             is_direct = true;
    std::string      why;
};
