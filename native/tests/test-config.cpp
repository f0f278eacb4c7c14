// SPDX-License-Identifier: MIT
#include "../src/core/config.h"
#include "check.h"

#include <map>

static bool parse(const std::map<std::string, std::string> & values, emc_config & config, std::string & error) {
    config = emc_config();
    error.clear();
    return emc_config_parse([&](const char * name) {
        const auto it = values.find(name);
        return it == values.end() ? nullptr : it->second.c_str();
    }, config, error);
}

int main() {
    emc_config config;
    std::string error;
    CHECK(parse({}, config, error));
    CHECK(!config.is_set && !config.wanted() && config.reader == "auto" && config.io_depth == 16 && config.read_kib == 1024 &&
        config.policy == "echo" && config.lookahead == emc_lookahead_mode::AUTOMATIC);
    CHECK(parse({{"EDGE_MOE_CACHE_MIB", "0"}}, config, error) && config.is_set && !config.wanted());
    CHECK(parse({{"EDGE_MOE_CACHE_MIB", ""}}, config, error) && !config.is_set);
    CHECK(parse({{"EDGE_MOE_CACHE_MIB", "2048"}}, config, error) && config.wanted() && config.cache_mib == 2048);
    CHECK(parse({{"EDGE_MOE_CACHE_MIB", "auto"}}, config, error) && config.wanted() && config.automatic);
    CHECK(parse({{"EDGE_MOE_READER", "pread"}, {"EDGE_MOE_IO_DEPTH", "2"}, {"EDGE_MOE_READ_KIB", "128"}, {"EDGE_MOE_POLICY", "lru"},
        {"EDGE_MOE_LOOKAHEAD", "0"}, {"EDGE_MOE_TRACE", "t"}, {"EDGE_MOE_STATS_DIR", "d"}}, config, error));
    CHECK(config.reader == "pread" && config.io_depth == 2 && config.read_kib == 128 && config.trace == "t" && config.stats_dir == "d");
    CHECK(config.lookahead == emc_lookahead_mode::OFF);
    CHECK(parse({{"EDGE_MOE_LOOKAHEAD", "1"}}, config, error) && config.lookahead == emc_lookahead_mode::ON);
    CHECK(parse({{"EDGE_MOE_LOOKAHEAD", "auto"}}, config, error) && config.lookahead == emc_lookahead_mode::AUTOMATIC);

    const struct { const char * name; const char * value; } bad[] = {
        {"EDGE_MOE_CACHE_MIB", "abc"}, {"EDGE_MOE_CACHE_MIB", "-1"}, {"EDGE_MOE_CACHE_MIB", "1.5"}, {"EDGE_MOE_CACHE_MIB", " 1"},
        {"EDGE_MOE_CACHE_MIB", "1G"}, {"EDGE_MOE_CACHE_MIB", "99999999999999999999"}, {"EDGE_MOE_CACHE_MIB", "AUTO"},
        {"EDGE_MOE_READER", "mmap"}, {"EDGE_MOE_IO_DEPTH", "0"}, {"EDGE_MOE_IO_DEPTH", "65"}, {"EDGE_MOE_READ_KIB", "0"}, {"EDGE_MOE_READ_KIB", "6"},
        {"EDGE_MOE_READ_KIB", "1000000"}, {"EDGE_MOE_POLICY", "best"}, {"EDGE_MOE_LOOKAHEAD", "2"}, {"EDGE_MOE_LOOKAHEAD", "on"},
    };
    for (const auto & b : bad) {
        CHECK(!parse({{b.name, b.value}}, config, error));
        CHECK(error.find(b.name) == 0);                                              // names the variable,
        CHECK(error.find("\"" + std::string(b.value) + "\"") != std::string::npos);  // the value,
        CHECK(error.find("it accepts ") != std::string::npos);                       // what would do,
        CHECK(error.find('\n') == std::string::npos);                                // in one line
    }
    return 0;
}
