// SPDX-License-Identifier: MIT
#include "routers.h"

#include "../src/core/layout.h"

#include "ggml.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

// The norm before the experts has one of two names.
static const char * const NORMS[] = { "ffn_norm.weight", "post_attention_norm.weight" };
static const char * const WEIGHTS = "ffn_gate_inp.weight";
static const char * const BIAS    = "ffn_gate_inp.bias";
// What is added to the scores for the choice alone has one of two names: Hunyuan's third has it without the suffix.
static const char * const CHOICES[] = { "exp_probs_b.bias", "exp_probs_b" };

// The widest state that a router in eight bits can sum exactly.
static constexpr int64_t WIDTH_MAX = 1 << 16;

void edge_moe_routers::add(const struct ggml_tensor * tensor, int fd, uint64_t offset) {
    const char * name  = nullptr;
    const int    layer = emc_tensor_layer(tensor->name, &name);
    if (layer < 0) {
        return;
    }
    for (const char * wanted : { WEIGHTS, BIAS, CHOICES[0], CHOICES[1], NORMS[0], NORMS[1] }) {
        if (strcmp(name, wanted) == 0) {
            places[{ layer, name }] = { tensor, fd, offset };
        }
    }
}

// From the file and not from the tensor, which may be on a GPU. Empty: not there, or not readable.
std::vector<float> edge_moe_routers::read(int layer, const char * name) const {
    const auto found = places.find({ layer, name });
    if (found == places.end()) {
        return {};
    }
    const ggml_tensor * tensor   = found->second.tensor;
    const auto *        traits   = ggml_get_type_traits(tensor->type);
    const int64_t       elements = ggml_nelements(tensor);
    std::vector<char>   bytes(ggml_nbytes(tensor));
    for (size_t got = 0; got < bytes.size();) {
        const ssize_t n = pread(found->second.fd, bytes.data() + got, bytes.size() - got, (off_t) (found->second.offset + got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return {};
        }
        got += (size_t) n;
    }
    std::vector<float> values((size_t) elements);
    if (tensor->type == GGML_TYPE_F32) {
        memcpy(values.data(), bytes.data(), bytes.size());
    } else if (traits && traits->to_float) {
        traits->to_float(bytes.data(), values.data(), elements);
    } else {
        return {};
    }
    return values;
}

std::vector<std::unique_ptr<emc_router>> edge_moe_routers::make(const std::vector<int> & layers) const {
    std::vector<std::unique_ptr<emc_router>> routers(layers.size());
    for (size_t i = 1; i < layers.size(); ++i) {
        const auto found = places.find({ layers[i], WEIGHTS });
        if (found == places.end()) {
            continue;
        }
        const ggml_tensor * tensor = found->second.tensor;
        if (tensor->ne[0] > WIDTH_MAX || tensor->ne[1] > EMC_EXPERTS_MAX || tensor->ne[2] != 1 || tensor->ne[3] != 1) {
            continue;
        }
        const std::vector<float> weights = read(layers[i], WEIGHTS);
        if (weights.empty()) {
            continue;
        }
        const std::vector<float> bias = read(layers[i], BIAS);
        std::vector<float> choice;
        for (const char * name : CHOICES) {
            choice = choice.empty() ? read(layers[i], name) : choice;
        }
        emc_router_weights w;
        w.width     = (int) tensor->ne[0];
        w.n_experts = (int) tensor->ne[1];
        w.weights   = weights.data();
        std::vector<float> from;
        std::vector<float> to;
        for (const char * norm : NORMS) {
            if (from.empty() || to.empty()) {
                from = read(layers[i - 1], norm);
                to   = read(layers[i], norm);
            }
        }
        const auto fits = [](const std::vector<float> & values, int n) { return values.size() == (size_t) n ? values.data() : nullptr; };
        w.from   = fits(from, w.width);
        w.to     = w.from ? fits(to, w.width) : nullptr;
        w.from   = w.to ? w.from : nullptr;
        w.bias   = fits(bias, w.n_experts);
        w.choice = fits(choice, w.n_experts);
        routers[i] = std::make_unique<emc_router>(w);
    }
    return routers;
}
