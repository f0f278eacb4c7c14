// SPDX-License-Identifier: MIT
// One thread and a ring. All that is queued when the thread looks is submitted by one system call, which also waits for
// the next read to end: a layer's misses cost one wake-up of this thread, however many they are.
//
// The kernel finishes a read in the thread that submitted it. Therefore compute threads do not submit: each end of a
// read would interrupt one of them, and somebody would still have to be woken.
//
// submit() rings a bell, an eventfd that is read through the ring too; so the thread waits in one place only. Results
// of reads mean what read-progress.h says. If the kernel refuses a submission for want of memory or room, that counts
// as such a result of each read in it.
#include "../core/check.h"
#include "file-set.h"
#include "io-calls.h"
#include "read-progress.h"
#include "reader.h"
#include "uring.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using steady = std::chrono::steady_clock;

class reader_uring : public emc_reader {
public:
    reader_uring(const emc_file_set & files_, int depth, emc_io_calls * calls_) :
        files(files_), calls(calls_ ? *calls_ : own_calls), ring(calls), flights(depth) {
        for (int i = depth; i > 0; --i) {
            free_flights.push_back((unsigned) i - 1);
        }
    }

    // 0 or the errno. The ring belongs to its thread, so the thread opens it, and proves that reads work at all.
    int open() {
        bell = eventfd(1, EFD_CLOEXEC);
        if (bell < 0) {
            return errno;
        }
        std::promise<int> opened;
        thread = std::thread([this, &opened] {
            const int error = open_ring();
            opened.set_value(error);
            if (!error) {
                run();
            }
        });
        return opened.get_future().get();
    }

    ~reader_uring() override {
        std::deque<emc_read> cancelled;
        {
            std::lock_guard<std::mutex> lock(mutex);
            stopping = true;
            cancelled.swap(queue);
        }
        for (const emc_read & read : cancelled) {
            sink->read_done(read, ECANCELED);
        }
        if (thread.joinable()) {
            ring_bell();
            thread.join();
        }
        if (bell >= 0) {
            close(bell);
        }
    }

    void start(emc_read_sink & sink_) override {
        EMC_CHECK(!sink);
        sink = &sink_;
    }

    void submit(const emc_read * reads, size_t n) override {
        for (size_t i = 0; i < n; ++i) {
            EMC_CHECK(emc_read_valid(reads[i]));
        }
        bool wake = false;
        {
            std::lock_guard<std::mutex> lock(mutex);
            EMC_CHECK(sink && !stopping);
            queue.insert(queue.end(), reads, reads + n);
            std::swap(wake, wants_bell);
        }
        if (wake) {
            ring_bell();
        }
    }

    emc_reader_stats stats() const override { return { bytes.load(), ns.load() }; }

    const char * name() const override { return "io_uring"; }

private:
    struct flight {
        emc_read           read;
        emc_read_progress  progress;
        steady::time_point begin;
    };

    static constexpr uint64_t BELL = ~0ull;  // tag of the bell's read; those of flights are their indices

    void ring_bell() {
        const uint64_t one = 1;
        EMC_CHECK(write(bell, &one, sizeof(one)) == sizeof(one));
    }

    int open_ring() {
        int error = ring.open((unsigned) flights.size() + 1);
        if (error) {
            return error;
        }
        ring.queue_read(bell, &bell_count, sizeof(bell_count), 0, BELL);
        while ((error = ring.enter()) == EINTR) {
        }
        uint64_t tag    = 0;
        int64_t  result = 0;
        if (!error && ring.next(tag, result)) {
            result = calls.read_result(result, &bell_count, sizeof(bell_count), 0);
            error  = result < 0 ? (int) -result : 0;  // a kernel that has rings but no plain read
        }
        return error;
    }

    void run() {
        bool bell_queued = false;
        while (true) {
            if (!bell_queued) {
                ring.queue_read(bell, &bell_count, sizeof(bell_count), 0, BELL);
                bell_queued = true;
            }
            {
                std::lock_guard<std::mutex> lock(mutex);
                for (; !queue.empty() && !free_flights.empty(); queue.pop_front()) {
                    const unsigned i = free_flights.back();
                    free_flights.pop_back();
                    flights[i] = { queue.front(), {}, steady::now() };
                    queue_flight(i);
                }
                if (stopping && free_flights.size() == flights.size()) {
                    return;
                }
                // with all flights under way a new read must wait for one of them in any case
                wants_bell = !free_flights.empty();
            }
            const int error = ring.enter();
            uint64_t tag    = 0;
            int64_t  result = 0;
            while (ring.next(tag, result)) {
                if (tag == BELL) {
                    bell_queued = false;
                } else {
                    advance((unsigned) tag, result);
                }
            }
            if (error && error != EINTR) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                refused.clear();
                while (ring.take_back(tag)) {
                    refused.push_back(tag);
                }
                for (const uint64_t i : refused) {
                    if (i == BELL) {
                        bell_queued = false;
                    } else {
                        advance((unsigned) i, error == EBUSY ? -EAGAIN : -error);
                    }
                }
            }
        }
    }

    void queue_flight(unsigned i) {
        const flight & f = flights[i];
        ring.queue_read(files.fd(f.read.file), (char *) f.read.buffer + f.progress.got, f.read.length - f.progress.got,
            f.read.offset + f.progress.got, i);
    }

    void advance(unsigned i, int64_t result) {
        flight & f = flights[i];
        const uint64_t got = f.progress.got;
        result = calls.read_result(result, (char *) f.read.buffer + got, f.read.length - got, f.read.offset + got);
        bytes += result > 0 ? (uint64_t) result : 0;
        int error = 0;
        if (f.progress.again(result, f.read.needed, error)) {
            queue_flight(i);
            return;
        }
        ns += (uint64_t) std::chrono::duration_cast<std::chrono::nanoseconds>(steady::now() - f.begin).count();
        const emc_read read = f.read;
        free_flights.push_back(i);
        sink->read_done(read, error);
    }

    const emc_file_set & files;
    emc_io_calls         own_calls;
    emc_io_calls &       calls;
    emc_read_sink *      sink = nullptr;
    int                  bell = -1;

    std::mutex           mutex;  // guards these three
    std::deque<emc_read> queue;
    bool                 wants_bell = false;
    bool                 stopping   = false;

    // of the thread alone
    emc_uring             ring;
    std::vector<flight>   flights;
    std::vector<unsigned> free_flights;
    std::vector<uint64_t> refused;
    uint64_t              bell_count = 0;

    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> ns{0};

    std::thread thread;
};

} // namespace

std::unique_ptr<emc_reader> emc_reader_uring(const emc_file_set & files, int depth, std::string & why, emc_io_calls * calls) {
    auto reader = std::make_unique<reader_uring>(files, depth, calls);
    const int error = reader->open();
    if (error) {
        why = std::string("the kernel refuses io_uring (") + strerror(error) + ")";
        return nullptr;
    }
    return reader;
}
