// SPDX-License-Identifier: MIT
#include "health.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static std::string label_value(const std::string & text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\' || c == '"') {
            out += '\\';
        }
        if (c == '\n') {
            out += "\\n";
        } else {
            out += c;
        }
    }
    return out;
}

static std::string number(double value) {
    char text[64];
    snprintf(text, sizeof(text), "%.6f", value);
    return text;
}

namespace {

struct text_builder {
    std::string out;
    std::string pid;

    void head(const char * name, const char * type, const char * help) {
        out += std::string("# HELP edge_moe_cache_") + name + " " + help + "\n";
        out += std::string("# TYPE edge_moe_cache_") + name + " " + type + "\n";
    }
    void sample(const char * name, const std::string & labels, const std::string & value) {
        out += std::string("edge_moe_cache_") + name + "{pid=\"" + pid + "\"" + labels + "} " + value + "\n";
    }
    void one(const char * name, const char * type, const char * help, const std::string & value) {
        head(name, type, help);
        sample(name, "", value);
    }
    void by_phase(const char * name, const char * help, const uint64_t * values) {
        head(name, "counter", help);
        sample(name, ",phase=\"decode\"",  std::to_string(values[EMC_DECODE]));
        sample(name, ",phase=\"prefill\"", std::to_string(values[EMC_PREFILL]));
    }
};

} // namespace

std::string emc_health_text(const emc_health & h, int pid, double now) {
    text_builder b;
    b.pid = std::to_string(pid);
    const emc_stats & s = h.stats;

    b.head("info", "gauge", "What serves the experts, and why.");
    b.sample("info", std::string(",mode=\"") + (h.on ? "cache" : "mmap") + "\",reason=\"" + label_value(h.reason) +
        "\",policy=\"" + label_value(h.policy) + "\",engine=\"" + label_value(h.engine) + "\",direct=\"" + (h.direct ? "1" : "0") + "\"", "1");
    b.one("asked_bytes",     "gauge", "Memory asked for.",                             std::to_string(h.asked_bytes));
    b.one("delivered_bytes", "gauge", "Memory that slots and staging take.",           std::to_string(h.delivered_bytes));
    b.one("staging_bytes",   "gauge", "Memory of it that prefill streams through.",    std::to_string(h.staging_bytes));
    b.one("slots",           "gauge", "Slots over all layers; a slot holds an expert.", std::to_string(h.slots));
    b.one("cycle_bytes",     "gauge", "Slot memory that one token touches.",           std::to_string(h.cycle_bytes));
    b.one("cycles",          "gauge", "Token cycles that fit into the slots.",         number(h.cycles));
    b.by_phase("hits_total",   "Lookups of an expert of a layer for a batch that found it.",  s.hits);
    b.by_phase("misses_total", "Lookups that had to read it.",                                s.misses);
    b.by_phase("streamed_total", "Misses that took no slot but passed through staging.",        s.streamed);
    b.by_phase("bypass_total", "Products that used the mapping although the cache is on.",    s.bypass);
    b.one("decode_tokens_total", "counter", "Tokens in decode batches.",                            std::to_string(s.decode_tokens));
    b.one("ahead_pieces_total",  "counter", "Pieces read into staging before their product began.",  std::to_string(s.ahead_queued));
    b.one("ahead_dropped_total", "counter", "Pieces of these that nothing asked for in time.",       std::to_string(s.ahead_dropped));
    b.one("guessed_total",       "counter", "Experts read into a slot before decode asked for them.",    std::to_string(s.guessed));
    b.one("guessed_used_total",  "counter", "Of these, asked for in time: hits.",                        std::to_string(s.guessed_used));
    b.one("guessed_lost_total",  "counter", "Of these, gone before anything asked for them.",            std::to_string(s.guessed_lost));
    b.one("read_bytes_total",    "counter", "Bytes read from the model's files into slots.",        std::to_string(s.read_bytes));
    b.one("read_seconds_total",  "counter", "Time that reads were under way, summed over reads.",   number((double) s.read_ns / 1e9));
    b.one("stall_seconds_total", "counter", "Time in which a compute thread waited for a piece.",   number((double) s.stall_ns / 1e9));
    b.one("evictions_total",     "counter", "Experts that gave up their slot.",                     std::to_string(s.evictions));
    b.one("errors_total",        "counter", "Pieces that could not be read.",                       std::to_string(s.errors));
    b.one("updated_timestamp_seconds", "gauge", "When this file was written.",                      number(now));
    return b.out;
}

static double unix_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool emc_health_writer::usable(const std::string & dir, std::string & error) {
    struct stat info;
    if (stat(dir.c_str(), &info) != 0) {
        error = strerror(errno);
        return false;
    }
    if (!S_ISDIR(info.st_mode)) {
        error = strerror(ENOTDIR);
        return false;
    }
    if (access(dir.c_str(), W_OK | X_OK) != 0) {
        error = strerror(errno);
        return false;
    }
    return true;
}

emc_health_writer::emc_health_writer(const std::string & dir, int pid_, std::function<emc_health()> read_) :
    file(dir + "/cache-" + std::to_string(pid_) + ".prom"), temporary(dir + "/.cache-" + std::to_string(pid_) + ".tmp"),
    pid(pid_), read(std::move(read_)), thread([this] { run(); }) {}

emc_health_writer::~emc_health_writer() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        stopping = true;
    }
    wake.notify_all();
    thread.join();
    unlink(file.c_str());
}

// Others may write to the directory: the temporary name is made anew, and never followed if it is a link.
bool emc_health_writer::write(const std::string & text) const {
    unlink(temporary.c_str());
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) {
        return false;
    }
    const bool wrote = ::write(fd, text.data(), text.size()) == (ssize_t) text.size();
    if (close(fd) != 0 || !wrote || rename(temporary.c_str(), file.c_str()) != 0) {
        unlink(temporary.c_str());
        return false;
    }
    return true;
}

void emc_health_writer::run() {
    constexpr double IDLE_S = 10;
    std::string written;  // without the time
    double      last = 0;
    std::unique_lock<std::mutex> lock(mutex);
    while (!stopping) {
        lock.unlock();
        const emc_health  health = read();
        const std::string text   = emc_health_text(health, pid, 0);
        const double      now    = unix_time();
        if ((text != written || now - last >= IDLE_S || now < last) && write(emc_health_text(health, pid, now))) {
            written = text;
            last    = now;
        }
        lock.lock();
        wake.wait_for(lock, std::chrono::seconds(1), [this] { return stopping; });
    }
}
