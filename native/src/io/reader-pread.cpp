// SPDX-License-Identifier: MIT
// A pool of threads that call pread. Its results mean what read-progress.h says.
#include "../core/check.h"
#include "file-set.h"
#include "io-calls.h"
#include "read-progress.h"
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

class reader_pread : public emc_reader {
public:
    reader_pread(const emc_file_set & files_, int depth_, emc_io_calls * calls_) :
        files(files_), depth(depth_), calls(calls_ ? *calls_ : own_calls) {}

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
            EMC_CHECK(emc_read_valid(reads[i]));
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
        emc_read_progress progress;
        int error = 0;
        while (true) {
            char *         buffer = (char *) read.buffer + progress.got;
            const uint64_t length = read.length - progress.got;
            const uint64_t offset = read.offset + progress.got;
            const int64_t  n      = pread(fd, buffer, length, (off_t) offset);
            const int64_t  result = calls.read_result(n < 0 ? -errno : n, buffer, length, offset);
            bytes += result > 0 ? (uint64_t) result : 0;
            if (!progress.again(result, read.needed, error)) {
                return error;
            }
        }
    }

    const emc_file_set & files;
    const int            depth;
    emc_io_calls         own_calls;
    emc_io_calls &       calls;
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

std::unique_ptr<emc_reader> emc_reader_pread(const emc_file_set & files, int depth, emc_io_calls * calls) {
    return std::make_unique<reader_pread>(files, depth, calls);
}
