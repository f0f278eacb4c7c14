// SPDX-License-Identifier: MIT
#include "trace-writer.h"

#include <cerrno>
#include <chrono>
#include <cstring>

std::unique_ptr<emc_trace_writer> emc_trace_writer::make(const std::string & path, const std::string & header, std::string & error) {
    FILE * file = fopen(path.c_str(), "we");
    if (!file) {
        error = "cannot write " + path + ": " + strerror(errno);
        return nullptr;
    }
    const std::string first = header + "\n";
    fwrite(first.data(), 1, first.size(), file);
    return std::unique_ptr<emc_trace_writer>(new emc_trace_writer(file));
}

emc_trace_writer::emc_trace_writer(FILE * file_) : file(file_), thread([this] { run(); }) {}

emc_trace_writer::~emc_trace_writer() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        stopping = true;
    }
    wake.notify_all();
    thread.join();
    if (dropped) {
        const std::string note = "# dropped " + std::to_string(dropped) + " events\n";
        fwrite(note.data(), 1, note.size(), file);
    }
    fclose(file);
}

void emc_trace_writer::heard(int layer, const int32_t * experts, int n) {
    begin(layer, 0, false);
    for (int i = 0; i < n; ++i) {
        hit(experts[i]);
    }
    end();
}

void emc_trace_writer::begin(int layer, int64_t rows, bool stream) {
    line = std::to_string(layer) + " " + std::to_string(rows) + (stream ? "~" : "");
}

void emc_trace_writer::hit(int expert) {
    line += " " + std::to_string(expert);
}

void emc_trace_writer::miss(int expert, int victim) {
    line += " " + std::to_string(expert) + "+";
    if (victim >= 0) {
        line += std::to_string(victim);
    }
}

void emc_trace_writer::passed(int expert) {
    line += " " + std::to_string(expert) + "-";
}

void emc_trace_writer::end() {
    line += "\n";
    std::lock_guard<std::mutex> lock(mutex);
    if (waiting.size() + line.size() > LIMIT) {
        dropped += 1;
    } else {
        waiting += line;
    }
}

void emc_trace_writer::run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
        wake.wait_for(lock, std::chrono::milliseconds(200), [this] { return stopping; });
        const bool last = stopping;
        std::string text;
        text.swap(waiting);
        lock.unlock();
        fwrite(text.data(), 1, text.size(), file);
        fflush(file);
        if (last) {
            return;
        }
        lock.lock();
    }
}
