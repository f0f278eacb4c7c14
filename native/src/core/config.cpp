// SPDX-License-Identifier: MIT
#include "config.h"

// Digits only: strtoull would take a sign, blanks and a tail.
static bool parse_number(const std::string & text, uint64_t low, uint64_t high, uint64_t & value) {
    if (text.empty() || text.size() > 12) {
        return false;
    }
    value = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') {
            return false;
        }
        value = value * 10 + (uint64_t) (c - '0');
    }
    return value >= low && value <= high;
}

static std::string complaint(const char * name, const std::string & value, const std::string & accepts) {
    return std::string(name) + " is \"" + value + "\": it accepts " + accepts;
}

bool emc_config_parse(const std::function<const char *(const char *)> & get, emc_config & config, std::string & error) {
    const auto text = [&](const char * name) {
        const char * value = get(name);
        return std::string(value ? value : "");
    };
    uint64_t number = 0;

    const std::string cache = text("EDGE_MOE_CACHE_MIB");
    config.is_set    = !cache.empty();
    config.automatic = cache == "auto";
    if (config.is_set && !config.automatic) {
        if (!parse_number(cache, 0, 1ull << 24, config.cache_mib)) {
            error = complaint("EDGE_MOE_CACHE_MIB", cache, "a whole number of MiB, auto, or 0 for off");
            return false;
        }
    }

    const std::string reader = text("EDGE_MOE_READER");
    if (!reader.empty()) {
        if (reader != "auto" && reader != "io_uring" && reader != "pread") {
            error = complaint("EDGE_MOE_READER", reader, "auto, io_uring or pread");
            return false;
        }
        config.reader = reader;
    }

    const std::string depth = text("EDGE_MOE_IO_DEPTH");
    if (!depth.empty()) {
        if (!parse_number(depth, 1, 64, number)) {
            error = complaint("EDGE_MOE_IO_DEPTH", depth, "a whole number of reads under way from 1 to 64");
            return false;
        }
        config.io_depth = (int) number;
    }

    const std::string read = text("EDGE_MOE_READ_KIB");
    if (!read.empty()) {
        if (!parse_number(read, 4, 65536, number) || number % 4 != 0) {
            error = complaint("EDGE_MOE_READ_KIB", read, "a multiple of 4 from 4 to 65536");
            return false;
        }
        config.read_kib = (int) number;
    }

    const std::string policy = text("EDGE_MOE_POLICY");
    if (!policy.empty()) {
        if (!emc_policy_make(policy, 1)) {
            error = complaint("EDGE_MOE_POLICY", policy, emc_policy_names());
            return false;
        }
        config.policy = policy;
    }

    const std::string lookahead = text("EDGE_MOE_LOOKAHEAD");
    if (lookahead == "0") {
        config.lookahead = emc_lookahead_mode::OFF;
    } else if (lookahead == "1") {
        config.lookahead = emc_lookahead_mode::ON;
    } else if (!lookahead.empty() && lookahead != "auto") {
        error = complaint("EDGE_MOE_LOOKAHEAD", lookahead, "0 for off, 1 for on, or auto for as long as it is faster");
        return false;
    }

    config.trace     = text("EDGE_MOE_TRACE");
    config.stats_dir = text("EDGE_MOE_STATS_DIR");
    return true;
}
