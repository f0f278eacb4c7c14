// SPDX-License-Identifier: MIT
// Records what was asked of the cache and what it decided, for replay. Off unless asked for.
//
// Text, one line a layer event, in the order in which the cache handled them:
//
//   edge-moe-trace 1 layers=L experts=E slots=S policy=P
//   LAYER ROWS[~] EXPERT[+[VICTIM]|-] ...
//
// `7` is a hit on expert 7, `7+` a load into an empty slot, `7+12` a load that evicted expert 12. `~`: a stream, of which
// only hits and the experts that were considered for a slot are there; `7-` got none, as the policy would sooner give it
// up again than what could have gone. ROWS 0: what the policy hears in place of the batch that comes next in this layer,
// one line for each row of a prompt. What lookahead loads is no event: a replay repeats the decisions of a trace that
// was recorded without it.
//
// begin, hit, miss and end only append to memory (the caller holds the engine's mutex); a thread of its own writes.
// When the disk cannot follow, events are dropped and counted rather than held without bound.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

class emc_trace_writer {
public:
    // nullptr, and error says why, if the file cannot be written.
    static std::unique_ptr<emc_trace_writer> make(const std::string & path, const std::string & header, std::string & error);
    ~emc_trace_writer();

    void heard(int layer, const int32_t * experts, int n);
    void begin(int layer, int64_t rows, bool stream);
    void hit(int expert);
    void miss(int expert, int victim);
    void passed(int expert);
    void end();

private:
    explicit emc_trace_writer(FILE * file);
    void run();

    static constexpr size_t LIMIT = 16u << 20;  // bytes that wait for the disk

    FILE *                  file;
    std::string             line;
    std::mutex              mutex;  // guards waiting, dropped and stopping
    std::condition_variable wake;
    std::string             waiting;
    uint64_t                dropped  = 0;
    bool                    stopping = false;
    std::thread             thread;
};
