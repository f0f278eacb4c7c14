// SPDX-License-Identifier: MIT
// A pool of threads that call pread. What a read can meet, and what is done:
//
//   all needed bytes        done
//   EINTR                   again
//   fewer than needed       again from the last whole page that arrived (a direct read must start on a page)
//   0 before needed         ENODATA: the file is shorter than its header says, or was truncated
//   any other errno         reported as it is; the caller computes from the mapping
#include "../core/check.h"
#include "file-set.h"
#include "reader.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

class system_pread : public emc_pread {
public:
    int64_t pread(int fd, void * buffer, uint64_t length, uint64_t offset) override {
        return ::pread(fd, buffer, length, (off_t) offset);
    }
};

class reader_pread : public emc_reader {
public:
    reader_pread(const emc_file_set & files_, int depth_, emc_pread * pread_) :
        files(files_), depth(depth_), calls(pread_ ? *pread_ : own_calls) {}

    ~reader_pread() override {
        std::deque<emc_read> cancelled;
        {
            std::lock_guard<std::mutex> lock(mutex);
            stopping = true;
            cancelled.swap(queue);
        }
        wake.notify_all();
        for (const emc_read & read : cancelled) {
            sink->read_done(read, ECANCELED);
        }
        for (std::thread & thread : threads) {
            thread.join();
        }
    }

    void start(emc_read_sink & sink_) override {
        EMC_CHECK(!sink);
        sink = &sink_;
        for (int i = 0; i < depth; ++i) {
            threads.emplace_back([this] { run(); });
        }
    }

    void submit(const emc_read * reads, size_t n) override {
        for (size_t i = 0; i < n; ++i) {
            EMC_CHECK(reads[i].offset % EMC_ALIGN == 0 && reads[i].length % EMC_ALIGN == 0);
            EMC_CHECK((uintptr_t) reads[i].buffer % EMC_ALIGN == 0);
            EMC_CHECK(reads[i].needed > 0 && reads[i].needed <= reads[i].length);
        }
        {
            std::lock_guard<std::mutex> lock(mutex);
            EMC_CHECK(sink && !stopping);
            queue.insert(queue.end(), reads, reads + n);
        }
        for (size_t i = 0; i < n && i < (size_t) depth; ++i) {
            wake.notify_one();
        }
    }

    emc_reader_stats stats() const override { return { bytes.load(), ns.load() }; }

    const char * name() const override { return "pread"; }

private:
    void run() {
        std::unique_lock<std::mutex> lock(mutex);
        while (true) {
            wake.wait(lock, [this] { return stopping || !queue.empty(); });
            if (queue.empty()) {
                return;
            }
            const emc_read read = queue.front();
            queue.pop_front();
            lock.unlock();

            const auto begin = std::chrono::steady_clock::now();
            const int  error = perform(read);
            const auto spent = std::chrono::steady_clock::now() - begin;
            ns += (uint64_t) std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
            sink->read_done(read, error);

            lock.lock();
        }
    }

    int perform(const emc_read & read) {
        const int fd = files.fd(read.file);
        uint64_t got = 0;
        while (true) {
            const int64_t n = calls.pread(fd, (char *) read.buffer + got, read.length - got, read.offset + got);
            if (n < 0) {
                if (errno == EINTR) {
                    continue;
                }
                return errno ? errno : EIO;
            }
            bytes += (uint64_t) n;
            if (got + (uint64_t) n >= read.needed) {
                return 0;
            }
            const uint64_t pages = (got + (uint64_t) n) / EMC_ALIGN * EMC_ALIGN;
            if (pages == got) {
                return ENODATA;
            }
            got = pages;
        }
    }

    const emc_file_set & files;
    const int            depth;
    system_pread         own_calls;
    emc_pread &          calls;
    emc_read_sink *      sink = nullptr;

    std::mutex               mutex;  // guards queue and stopping; never held across a read
    std::condition_variable  wake;
    std::deque<emc_read>     queue;
    bool                     stopping = false;
    std::vector<std::thread> threads;

    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> ns{0};
};

} // namespace

std::unique_ptr<emc_reader> emc_reader_pread(const emc_file_set & files, int depth, emc_pread * pread) {
    return std::make_unique<reader_pread>(files, depth, pread);
}
