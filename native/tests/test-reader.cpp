// SPDX-License-Identifier: MIT
// One suite for every reader, named on the command line: each line of the taxonomy in read-progress.h, refusals of the
// system, real files that change, and shutdown. 77 if the kernel refuses that reader.
#include "../src/io/file-set.h"
#include "../src/io/io-calls.h"
#include "../src/io/read-progress.h"
#include "../src/io/reader.h"
#include "../src/io/slab.h"
#include "../src/io/window.h"
#include "payload.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <sys/mman.h>
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

// What the system says of reads, of setting up a ring and of entering it, changed as the test scripts it.
struct scripted_calls : emc_io_calls {
    int uring_setup(unsigned entries, io_uring_params * params) override {
        return setup_result ? setup_result : emc_io_calls::uring_setup(entries, params);
    }
    int uring_enter(int ring, unsigned submit, unsigned wait_for, unsigned flags) override {
        const int refusal = enter ? enter(submit) : 0;
        return refusal ? refusal : emc_io_calls::uring_enter(ring, submit, wait_for, flags);
    }
    int64_t read_result(int64_t result, void * buffer, uint64_t length, uint64_t offset) override {
        if (length < EMC_ALIGN) {
            return result;  // the ring's proof that it reads at all
        }
        CHECK(offset % EMC_ALIGN == 0 && length % EMC_ALIGN == 0 && (uintptr_t) buffer % EMC_ALIGN == 0);
        const int64_t seen = script ? script(result, offset) : result;
        if (seen < result) {
            // what did not arrive is not there
            memset((char *) buffer + std::max<int64_t>(seen, 0), 0xEE, (size_t) (result - std::max<int64_t>(seen, 0)));
        }
        return seen;
    }
    int                                       setup_result = 0;
    std::function<int(unsigned)>              enter;   // 0: as the system does
    std::function<int64_t(int64_t, uint64_t)> script;  // (result of the system, offset) -> what the reader sees
};

std::string reader_name;

std::unique_ptr<emc_reader> make_reader(const emc_file_set & files, int depth, emc_io_calls * calls = nullptr) {
    if (reader_name == "pread") {
        return emc_reader_pread(files, depth, calls);
    }
    std::string why;
    auto reader = emc_reader_uring(files, depth, why, calls);
    CHECK(reader);
    return reader;
}

} // namespace

static emc_read one_read(void * buffer, uint64_t length, uint64_t needed) {
    emc_read read;
    read.length = length;
    read.needed = needed;
    read.buffer = buffer;
    read.slot   = 0;
    return read;
}

// Runs one read of 16 KiB whose first 16000 bytes are needed; returns its error. The bytes are right if it is 0.
static int outcome(const emc_file_set & files, scripted_calls & calls) {
    aligned_buffer buffer(16384);
    collecting_sink sink;
    const auto reader = make_reader(files, 1, &calls);
    reader->start(sink);
    const emc_read read = one_read(buffer.data, 16384, 16000);
    reader->submit(&read, 1);
    sink.wait_for(1);
    for (uint64_t i = 0; i < 16000 && sink.ended[0] == 0; ++i) {
        CHECK_EQ((int) buffer.data[i], (int) payload_byte(0, i));
    }
    return sink.ended[0];
}

static void taxonomy() {
    const payload_file file(0, 16384);
    emc_file_set files;
    CHECK_EQ(files.add(file.path), 0);
    scripted_calls calls;
    int n = 0;

    CHECK_EQ(outcome(files, calls), 0);

    // interrupted or told to come again, three times; and without end
    for (const int error : { EINTR, EAGAIN }) {
        n = 0;
        calls.script = [&](int64_t result, uint64_t) { return n++ < 3 ? -error : result; };
        CHECK_EQ(outcome(files, calls), 0);
        CHECK_EQ(n, 4);
        n = 0;
        calls.script = [&](int64_t, uint64_t) { n += 1; return -error; };
        CHECK_EQ(outcome(files, calls), error);
        CHECK_EQ(n, EMC_READ_RETRIES + 1);
    }

    // short, in the middle of a page: goes on from the last whole page
    n = 0;
    calls.script = [&](int64_t result, uint64_t) {
        n += 1;
        return std::min<int64_t>(result, 5000);
    };
    CHECK_EQ(outcome(files, calls), 0);
    CHECK_EQ(n, 4);

    // all that is needed and no more: the file ends there
    calls.script = [&](int64_t result, uint64_t) { return std::min<int64_t>(result, 16000); };
    CHECK_EQ(outcome(files, calls), 0);

    // the file ends before, at a page and within one
    for (const int64_t end : { 0, 100, 8192, 15999 }) {
        calls.script = [&](int64_t result, uint64_t offset) {
            return std::max<int64_t>(0, std::min<int64_t>(result, end - (int64_t) offset));
        };
        CHECK_EQ(outcome(files, calls), ENODATA);
    }

    // an error of the drive, at once and after a first part
    calls.script = [&](int64_t, uint64_t) { return -EIO; };
    CHECK_EQ(outcome(files, calls), EIO);
    calls.script = [&](int64_t result, uint64_t offset) { return offset ? -EIO : std::min<int64_t>(result, 4096); };
    CHECK_EQ(outcome(files, calls), EIO);
}

// The kernel refuses a ring, at once or once it is in use. Only the ring enters anything.
static void refused_ring() {
    const payload_file file(0, 16384);
    emc_file_set files;
    CHECK_EQ(files.add(file.path), 0);
    std::string why;
    for (const int error : { ENOSYS, EPERM, ENOMEM, EMFILE }) {
        scripted_calls calls;
        calls.setup_result = -error;
        CHECK(!emc_reader_uring(files, 4, why, &calls));
        CHECK(why.find(strerror(error)) != std::string::npos);
    }
    // seccomp may allow to set one up and refuse to enter it
    scripted_calls filtered;
    filtered.enter = [](unsigned) { return -EPERM; };
    CHECK(!emc_reader_uring(files, 4, why, &filtered));
    CHECK(why.find(strerror(EPERM)) != std::string::npos);

    // a kernel that has rings and no plain read
    struct no_read : emc_io_calls {
        int64_t read_result(int64_t, void *, uint64_t, uint64_t) override { return -EINVAL; }
    } old;
    CHECK(!emc_reader_uring(files, 4, why, &old));
    CHECK(why.find(strerror(EINVAL)) != std::string::npos);

    // want of memory or room for a submission passes, or does not: then each read of it says so
    std::atomic<int> refusals{0};
    for (const int error : { EINTR, EAGAIN, EBUSY }) {
        scripted_calls calls;
        refusals = 5;
        bool open = false;
        calls.enter = [&](unsigned submit) { return open && submit > 0 && refusals > 0 ? (refusals -= 1, -error) : (open = true, 0); };
        CHECK_EQ(outcome(files, calls), 0);
        CHECK_EQ(refusals.load(), 0);
    }
    {
        scripted_calls calls;
        std::atomic<int> entered{0};
        calls.enter = [&](unsigned submit) { return entered++ > 0 && submit > 0 ? -ENOMEM : 0; };  // the first proves the ring
        CHECK_EQ(outcome(files, calls), ENOMEM);
    }
}

// Reads that wait when the reader is destroyed are told so, each once; the one under way ends first.
static void cancelled() {
    const payload_file file(0, 4096);
    emc_file_set files;
    CHECK_EQ(files.add(file.path), 0);
    std::vector<std::unique_ptr<aligned_buffer>> buffers;
    collecting_sink sink;
    std::mutex gate;
    scripted_calls calls;
    std::condition_variable begun;
    bool has_begun = false;
    bool may_end   = false;
    calls.script = [&](int64_t result, uint64_t) {
        std::unique_lock<std::mutex> lock(gate);
        has_begun = true;
        begun.notify_all();
        begun.wait(lock, [&] { return may_end; });
        return result;
    };
    auto reader = make_reader(files, 1, &calls);
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

// Many slow reads under way and waiting when the reader goes: each ends once, and no byte arrives afterwards.
static void shutdown_in_flight() {
    const payload_file file(0, 1 << 20);
    emc_file_set files;
    CHECK_EQ(files.add(file.path), 0);
    scripted_calls calls;
    calls.script = [&](int64_t result, uint64_t offset) {
        std::this_thread::sleep_for(std::chrono::microseconds(offset / 4096 % 7 * 100));
        return result;
    };
    const int n = 64;
    for (const int depth : { 1, 4, 16 }) {
        aligned_buffer  buffer(1 << 20);
        collecting_sink sink;
        {
            const auto reader = make_reader(files, depth, &calls);
            reader->start(sink);
            std::vector<emc_read> reads;
            for (int i = 0; i < n; ++i) {
                reads.push_back(one_read(buffer.data + 16384 * i, 16384, 16384));
                reads.back().offset = 16384 * (uint64_t) i;
                reads.back().slot   = i;
            }
            reader->submit(reads.data(), 40);
            reader->submit(reads.data() + 40, n - 40);
        }
        CHECK_EQ(sink.ended.size(), (size_t) n);
        for (int i = 0; i < n; ++i) {
            CHECK(sink.ended[i] == 0 || sink.ended[i] == ECANCELED);
            for (uint64_t at = 16384 * (uint64_t) i; sink.ended[i] == 0 && at < 16384 * (uint64_t) (i + 1); at += 61) {
                CHECK_EQ((int) buffer.data[at], (int) payload_byte(0, at));
            }
        }
    }
    // never used at all
    make_reader(files, 4);
}

// The file changes while we hold it: shorter, then gone and replaced under its name.
static void changing_file() {
    const payload_file file(0, 65536);
    for (const bool direct : { true, false }) {
        emc_file_set files;
        CHECK_EQ(files.add(file.path, direct), 0);
        // another inode takes the name; the descriptor stays with the first
        const payload_file other(1, 65536);
        const std::string  kept = file.path + "-kept";
        CHECK(rename(file.path.c_str(), kept.c_str()) == 0);
        CHECK(rename(other.path.c_str(), file.path.c_str()) == 0);
        scripted_calls calls;
        CHECK_EQ(outcome(files, calls), 0);
        CHECK(rename(kept.c_str(), file.path.c_str()) == 0);
    }
    emc_file_set files;
    CHECK_EQ(files.add(file.path), 0);
    scripted_calls calls;
    for (const off_t length : { 15000, 8192, 1, 0 }) {
        CHECK(truncate(file.path.c_str(), length) == 0);
        CHECK_EQ(outcome(files, calls), ENODATA);
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
    const auto reader = make_reader(files, 3);
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
    CHECK_EQ(proc.add("/proc/version"), 0);
    CHECK(!proc.direct());
    CHECK(proc.reason().find("refuses O_DIRECT") != std::string::npos);

    // a drive with larger blocks than our reads: open() succeeds, the proof does not
    scripted_calls large_blocks;
    large_blocks.script = [](int64_t, uint64_t) { return -EINVAL; };
    emc_file_set large(&large_blocks);
    const payload_file whole(0, 16384);
    CHECK_EQ(large.add(whole.path), 0);
    CHECK(!large.direct());
    CHECK(large.reason().find("refuses direct reads of 4096 bytes") != std::string::npos);
    scripted_calls plain;
    CHECK_EQ(outcome(large, plain), 0);
}

// By name: what was asked for, or the pool and why.
static void choice() {
    const payload_file file(0, 16384);
    emc_file_set files;
    CHECK_EQ(files.add(file.path), 0);
    std::string why = "?";
    int depth = 16;
    CHECK_EQ(std::string(emc_reader_make("pread", files, depth, why)->name()), std::string("pread"));
    CHECK(depth == EMC_POOL_MAX && why.empty());
    depth = 16;
    const auto any = emc_reader_make("auto", files, depth, why);
    CHECK(any);
    if (any->name() == std::string("io_uring")) {
        CHECK(depth == 16 && why.empty());
    } else {
        CHECK(depth == EMC_POOL_MAX && !why.empty());
    }
    const auto ring = emc_reader_make("io_uring", files, depth, why);
    CHECK_EQ(ring == nullptr, !why.empty());
}

// Slots' memory: zeroed, at a huge page, and given back whole.
static void slab() {
    for (const uint64_t bytes : { 1ull, 4096ull, 2ull << 20, (5ull << 20) + 4096 }) {
        char * memory = (char *) emc_slab_map(bytes);
        CHECK(memory && (uintptr_t) memory % (2 << 20) == 0);
        CHECK(memory[0] == 0 && memory[bytes - 1] == 0);
        memory[bytes - 1] = 1;
        CHECK(munmap(memory, bytes) == 0);
    }
    CHECK(!emc_slab_map(1ull << 60) && errno == ENOMEM);
    CHECK(!emc_slab_map(~0ull - 8192) && errno == ENOMEM);
}

int main(int argc, char ** argv) {
    CHECK(argc == 2);
    reader_name = argv[1];
    if (reader_name == "io_uring") {
        emc_file_set none;
        std::string  why;
        if (!emc_reader_uring(none, 1, why)) {
            printf("skipped: %s\n", why.c_str());
            return 77;
        }
        refused_ring();
    }
    taxonomy();
    cancelled();
    shutdown_in_flight();
    changing_file();
    for (const uint64_t largest : { 4096ull * 31, 1ull << 20, 1ull << 24 }) {
        pieces(true, largest);
        pieces(false, largest);
    }
    opening();
    choice();
    slab();
    return 0;
}
