// SPDX-License-Identifier: MIT
#include "policy.h"

std::unique_ptr<emc_policy> emc_policy_make(const std::string & name, int n_experts) {
    if (name == "echo") {
        return emc_policy_echo(n_experts);
    }
    if (name == "lru") {
        return emc_policy_lru(n_experts);
    }
    return nullptr;
}

const char * emc_policy_names() {
    return "echo lru";
}
