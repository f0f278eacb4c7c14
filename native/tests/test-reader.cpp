// SPDX-License-Identifier: MIT
// The pread pool: one test for each line of the taxonomy at the top of reader-pread.cpp, and real files.
#include "../src/io/file-set.h"
#include "../src/io/reader.h"
#include "../src/io/window.h"
#include "payload.h"

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace {

struct aligned_buffer {
    explicit aligned_buffer(uint64_t n) : data((uint8_t *) aligned_alloc(EMC_ALIGN, n)) { memset(data, 0, n); }
    ~aligned_buffer() { free(data); }
    aligned_buffer(const aligned_buffer &) = delete;
    uint8_t * data;
};

struct collecting_sink : emc_read_sink {
    void read_done(const emc_read & read, int error) override {
        std::lock_guard<std::mutex> lock(mutex);
        CHECK(!ended.count(read.slot));  // exactly once
        ended[read.slot] = error;
        changed.notify_all();
    }
    void wait_for(size_t n) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return ended.size() == n; });
    }
    std::mutex              mutex;
    std::condition_variable changed;
    std::map<int, int>      ended;  // by slot: error
};

// Answers as the test scripts it; else as the system does.
struct scripted_pread : emc_pread {
    int64_t pread(int fd, void * buffer, uint64_t length, uint64_t offset) override {
        CHECK(offset % EMC_ALIGN == 0 && length % EMC_ALIGN == 0 && (uintptr_t) buffer % EMC_ALIGN == 0);
        return script(fd, buffer, length, offset);
    }
    std::function<int64_t(int, void *, uint64_t, uint64_t)> script;
};

} // namespace

static emc_read one_read(void * buffer, uint64_t length, uint64_t needed) {
    emc_read read;
    read.length = length;
    read.needed = needed;
    read.buffer = buffer;
    read.slot   = 0;
    return read;
}

// Runs one read of 16 KiB whose first 16000 bytes are needed; returns its error.
static int outcome(const emc_file_set & files, scripted_pread & calls, aligned_buffer & buffer) {
    collecting_sink sink;
    const auto reader = emc_reader_pread(files, 1, &calls);
    reader->start(sink);
    const emc_read read = one_read(buffer.data, 16384, 16000);
    reader->submit(&read, 1);
    sink.wait_for(1);
    return sink.ended[0];
}

static void taxonomy() {
    const payload_file file(0, 16384);
    emc_file_set files;
    CHECK_EQ(files.add(file.path), 0);
    aligned_buffer buffer(16384);
    scripted_pread calls;
    int n = 0;

    const auto good = [&](int fd, void * b, uint64_t length, uint64_t offset) { return (int64_t) ::pread(fd, b, length, (off_t) offset); };

    calls.script = good;
    CHECK_EQ(outcome(files, calls, buffer), 0);
    for (uint64_t i = 0; i < 16000; ++i) {
        CHECK_EQ((int) buffer.data[i], (int) payload_byte(0, i));
    }

    // interrupted, three times
    n = 0;
    calls.script = [&](int fd, void * b, uint64_t length, uint64_t offset) -> int64_t {
        if (n++ < 3) {
            errno = EINTR;
            return -1;
        }
        return good(fd, b, length, offset);
    };
    CHECK_EQ(outcome(files, calls, buffer), 0);
    CHECK_EQ(n, 4);

    // short, in the middle of a page: goes on from the last whole page
    memset(buffer.data, 0, 16384);
    n = 0;
    calls.script = [&](int fd, void * b, uint64_t length, uint64_t offset) {
        n += 1;
        return std::min<int64_t>(good(fd, b, length, offset), 5000);
    };
    CHECK_EQ(outcome(files, calls, buffer), 0);
    CHECK_EQ(n, 4);
    for (uint64_t i = 0; i < 16000; ++i) {
        CHECK_EQ((int) buffer.data[i], (int) payload_byte(0, i));
    }

    // all that is needed and no more: the file ends there
    calls.script = [&](int fd, void * b, uint64_t length, uint64_t offset) { return std::min<int64_t>(good(fd, b, length, offset), 16000); };
    CHECK_EQ(outcome(files, calls, buffer), 0);

    // the file ends before, at a page and within one
    for (const int64_t end : { 0, 100, 8192, 15999 }) {
        calls.script = [&](int fd, void * b, uint64_t length, uint64_t offset) {
            return std::max<int64_t>(0, std::min<int64_t>(good(fd, b, length, offset), end - (int64_t) offset));
        };
        CHECK_EQ(outcome(files, calls, buffer), ENODATA);
    }

    // an error of the drive, at once and after a first part
    calls.script = [&](int, void *, uint64_t, uint64_t) -> int64_t {
        errno = EIO;
        return -1;
    };
    CHECK_EQ(outcome(files, calls, buffer), EIO);
    calls.script = [&](int fd, void * b, uint64_t length, uint64_t offset) -> int64_t {
        if (offset) {
            errno = EIO;
            return -1;
        }
        return std::min<int64_t>(good(fd, b, length, offset), 4096);
    };
    CHECK_EQ(outcome(files, calls, buffer), EIO);
}

// Reads that wait when the reader is destroyed are told so, each once; the one under way ends first.
static void cancelled() {
    const payload_file file(0, 4096);
    emc_file_set files;
    CHECK_EQ(files.add(file.path), 0);
    std::vector<std::unique_ptr<aligned_buffer>> buffers;
    collecting_sink sink;
    std::mutex gate;
    scripted_pread calls;
    std::condition_variable begun;
    bool has_begun = false;
    bool may_end   = false;
    calls.script = [&](int fd, void * b, uint64_t length, uint64_t offset) {
        std::unique_lock<std::mutex> lock(gate);
        has_begun = true;
        begun.notify_all();
        begun.wait(lock, [&] { return may_end; });
        return (int64_t) ::pread(fd, b, length, (off_t) offset);
    };
    auto reader = emc_reader_pread(files, 1, &calls);
    reader->start(sink);
    for (int i = 0; i < 5; ++i) {
        buffers.push_back(std::make_unique<aligned_buffer>(4096));
        emc_read read = one_read(buffers.back()->data, 4096, 4096);
        read.slot = i;
        reader->submit(&read, 1);
    }
    std::thread opener([&] {
        sink.wait_for(4);  // the four that had not begun
        std::lock_guard<std::mutex> lock(gate);
        may_end = true;
        begun.notify_all();
    });
    {
        std::unique_lock<std::mutex> lock(gate);
        begun.wait(lock, [&] { return has_begun; });
    }
    reader.reset();
    opener.join();
    CHECK_EQ(sink.ended.size(), 5u);
    CHECK_EQ(sink.ended[0], 0);
    for (int i = 1; i < 5; ++i) {
        CHECK_EQ(sink.ended[i], ECANCELED);
    }
}

// Pieces of 4,406,400 bytes (gpt-oss-20b's), back to back from an offset that is only a multiple of 32, with slots
// side by side: the last page of one must not reach into the next. The file ends with the last piece.
static void pieces(bool direct, uint64_t largest) {
    const uint64_t piece = 4406400;
    const uint64_t first = 4064;
    const int      n     = 3;
    const payload_file file(0, first + piece * n);
    emc_file_set files;
    CHECK_EQ(files.add(file.path, direct), 0);
    if (!direct) {
        CHECK(!files.direct() && !files.reason().empty());
    } else if (!files.direct()) {
        printf("note: %s\n", files.reason().c_str());
    }
    const uint64_t room = (piece + EMC_ALIGN - 1) / EMC_ALIGN * EMC_ALIGN + EMC_ALIGN;
    aligned_buffer slab(room * n);
    collecting_sink sink;
    const auto reader = emc_reader_pread(files, 3);
    reader->start(sink);
    std::vector<emc_read> reads;
    for (int e = 0; e < n; ++e) {
        const emc_window w = emc_window_of(first + piece * (uint64_t) e, piece);
        CHECK(w.end - w.begin <= room);
        for (uint64_t i = 0; i < emc_window_cuts(w, largest); ++i) {
            const emc_cut cut = emc_window_cut(w, piece, largest, i);
            emc_read read;
            read.offset = cut.offset;
            read.length = cut.length;
            read.needed = cut.needed;
            read.buffer = slab.data + room * (uint64_t) e + (cut.offset - w.begin);
            read.slot   = (emc_slot) reads.size();
            reads.push_back(read);
        }
    }
    reader->submit(reads.data(), reads.size());
    sink.wait_for(reads.size());
    for (const auto & ended : sink.ended) {
        CHECK_EQ(ended.second, 0);
    }
    for (int e = 0; e < n; ++e) {
        const emc_window w = emc_window_of(first + piece * (uint64_t) e, piece);
        emc_extent extent;
        extent.offset = first;
        extent.stride = piece;
        payload_check(extent, e, slab.data + room * (uint64_t) e + w.lead, 17);
    }
    CHECK(reader->stats().bytes >= piece * n);
}

// What cannot be opened says so, and a descriptor that is given is opened anew, not shared.
static void opening() {
    emc_file_set files;
    CHECK_EQ(files.add("/no/such/file"), -1);
    CHECK(files.reason().find("/no/such/file") != std::string::npos);
    const payload_file file(0, 100);  // shorter than a page: the probe must not take that for a refusal
    FILE * f = fopen(file.path.c_str(), "rb");
    CHECK_EQ(files.add_fd(fileno(f)), 0);
    CHECK(files.fd(0) != fileno(f));
    fclose(f);
    char byte = 0;
    aligned_buffer page(4096);
    CHECK_EQ(pread(files.fd(0), page.data, 4096, 0), (ssize_t) 100);
    byte = (char) page.data[99];
    CHECK_EQ((uint8_t) byte, payload_byte(0, 99));

    // a file system that refuses direct reads: labelled, and read all the same
    emc_file_set proc;
    CHECK_EQ(proc.add("/proc/self/cmdline"), 0);
    CHECK(!proc.direct());
    CHECK(proc.reason().find("refuses O_DIRECT") != std::string::npos);
}

int main() {
    taxonomy();
    cancelled();
    for (const uint64_t largest : { 4096ull * 31, 1ull << 20, 1ull << 24 }) {
        pieces(true, largest);
        pieces(false, largest);
    }
    opening();
    return 0;
}
