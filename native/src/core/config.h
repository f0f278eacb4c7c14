// SPDX-License-Identifier: MIT
// The settings, parsed from text that the caller hands in. Defaults are here (the policy's: policy.h) and nowhere else.
#pragma once

#include "policy.h"

#include <cstdint>
#include <functional>
#include <string>

enum class emc_lookahead_mode { OFF, ON, AUTOMATIC };

struct emc_config {
    bool        is_set    = false;  // EDGE_MOE_CACHE_MIB was given
    bool        automatic = false;  // EDGE_MOE_CACHE_MIB=auto
    uint64_t    cache_mib = 0;      // 0 = off
    std::string reader    = "auto"; // see emc_reader_make
    int         io_depth  = 16;     // reads under way
    int         read_kib  = 1024;   // largest single read
    std::string policy    = EMC_DEFAULT_POLICY;
    emc_lookahead_mode lookahead = emc_lookahead_mode::AUTOMATIC;
    std::string trace;              // file; empty = none
    std::string stats_dir;          // directory; empty = none

    bool wanted() const { return automatic || cache_mib > 0; }
};

// get(name) returns the variable's text, or nullptr. On a bad value: false, and error is one line that names the
// variable, the value and what it accepts. An empty value counts as not set.
bool emc_config_parse(const std::function<const char *(const char *)> & get, emc_config & config, std::string & error);
