// SPDX-License-Identifier: MIT
#include "router.h"

#include "check.h"

#include <algorithm>
#include <cmath>

// The largest magnitude, with what is no number counted as nothing.
static float largest(const float * values, int n) {
    float most = 0;
    for (int i = 0; i < n; ++i) {
        const float size = std::fabs(values[i]);
        most = size > most && std::isfinite(size) ? size : most;
    }
    return most;
}

static void round_to_bytes(const float * values, int n, float most, int8_t * bytes) {
    const float factor = most > 0 ? 127.0f / most : 0.0f;
    for (int i = 0; i < n; ++i) {
        const float scaled = values[i] * factor;
        bytes[i] = std::isfinite(scaled) ? (int8_t) std::lrintf(std::clamp(scaled, -127.0f, 127.0f)) : (int8_t) 0;
    }
}

// Kept apart so that the compiler makes it one loop of wide multiply-adds.
static int32_t dot(const int8_t * a, const int8_t * b, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += (int32_t) a[i] * (int32_t) b[i];
    }
    return sum;
}

emc_router::emc_router(const emc_router_weights & w) : n_width(w.width) {
    EMC_CHECK(w.n_experts > 0 && w.width > 0 && w.width <= 1 << 16 && w.weights);
    rows.resize((size_t) w.n_experts * w.width);
    scales.resize(w.n_experts);
    rounded.resize(w.width);
    scores.resize(w.n_experts);
    ids.resize(w.n_experts);
    if (w.bias) {
        bias.assign(w.bias, w.bias + w.n_experts);
    }
    if (w.choice) {
        choice.assign(w.choice, w.choice + w.n_experts);
    }
    std::vector<float> row(w.width);
    for (int e = 0; e < w.n_experts; ++e) {
        for (int i = 0; i < w.width; ++i) {
            float value = w.weights[(size_t) e * w.width + i];
            if (w.to) {
                value *= w.to[i];
            }
            if (w.from) {
                value = w.from[i] != 0 ? value / w.from[i] : 0;
            }
            row[i] = value;
        }
        const float most = largest(row.data(), w.width);
        round_to_bytes(row.data(), w.width, most, rows.data() + (size_t) e * w.width);
        scales[e] = most / 127.0f;
    }
}

void emc_router::guess(const float * state, int n, int32_t * top) {
    const int n_all = n_experts();
    EMC_CHECK(n >= 0 && n <= n_all);
    const float most = largest(state, n_width);
    round_to_bytes(state, n_width, most, rounded.data());
    for (int e = 0; e < n_all; ++e) {
        float score = (float) dot(rows.data() + (size_t) e * n_width, rounded.data(), n_width) * scales[e] * (most / 127.0f);
        if (!bias.empty()) {
            score += bias[e];
        }
        if (!choice.empty()) {
            score = 1.0f / (1.0f + std::exp(-score)) + choice[e];
        }
        scores[e] = std::isfinite(score) ? score : -INFINITY;
        ids[e]    = e;
    }
    // equal scores by id, so that a replay repeats the guess
    std::partial_sort(ids.begin(), ids.begin() + n, ids.end(),
        [this](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
    std::copy_n(ids.begin(), n, top);
}
