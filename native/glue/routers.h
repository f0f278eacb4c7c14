// SPDX-License-Identifier: MIT
// Finds a model's routers among its tensors and makes quantised copies of them (see core/router.h).
#pragma once

#include "../src/core/router.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

struct ggml_tensor;

class edge_moe_routers {
public:
    // Looks at any tensor of the model and keeps those that routing depends on. Its bytes are at this offset of fd.
    void add(const struct ggml_tensor * tensor, int fd, uint64_t offset);

    // One for each of these layers (numbers as in tensor names) that can be guessed for from the one before it in the
    // list; null where a part is missing or cannot be read. Reads the files, so they must still be open.
    std::vector<std::unique_ptr<emc_router>> make(const std::vector<int> & layers) const;

private:
    struct place {
        const struct ggml_tensor * tensor;
        int                        fd;
        uint64_t                   offset;
    };

    std::vector<float> read(int layer, const char * name) const;

    std::map<std::pair<int, std::string>, place> places;  // by layer and name inside the layer
};
