// SPDX-License-Identifier: MIT
// Reads a trace of any known format into memory. Input is not trusted: ids, lines and totals are bounded.
//
//   edge-moe-trace 1     our own: see src/engine/trace-writer.h. A last line without an end was cut off: left out
//   CSV                  `#` lines, then turn,phase,step,layer,slot,expert,weight,residency,expert_bytes; one row an expert,
//                        phase 0 = prefill, 1 = decode; the rows of one turn, phase, step and layer are one event
//   JSONL                {"tok": T, "layers": [[EXPERT, ...], ...]}; one decode token a line, one event a layer
#pragma once

#include "trace.h"

#include <istream>
#include <string>

constexpr int    EMC_TRACE_LAYERS  = 512;
constexpr int    EMC_TRACE_EXPERTS = 4096;       // in a layer
constexpr size_t EMC_TRACE_LINE    = 1u << 20;   // bytes
constexpr size_t EMC_TRACE_LOOKUPS = 16u << 20;

// What to do with the prompt of a CSV trace, which has it token by token although a server handles it in batches.
enum class emc_prefill {
    TOKENS,  // each token is an event: the cache is warm when decode begins
    BATCH,   // all tokens of a layer that follow each other are one event, as in a server
    SKIP,    // (any format) leave prefill out: decode begins with an empty cache
};

// false, and error is one line "NAME:LINE: ..." that says what was seen and what is accepted.
bool emc_trace_read(std::istream & in, const std::string & name, emc_prefill prefill, emc_trace & trace, std::string & error);
