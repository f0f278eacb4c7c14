// SPDX-License-Identifier: MIT
// What the patched llama.cpp calls. Everything else of the cache is behind these functions.
//
// The CPU backend's mul_mat_id calls the C part. With no cache, or for a tensor that the cache does not serve,
// edge_moe_begin returns NULL and the other functions hand back what the stock code would have used.
#pragma once

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct edge_moe_call;

// A product whose expert weights lie in a slot: copies of the two tensors, with the address exchanged.
struct edge_moe_view {
    struct ggml_tensor src0;
    struct ggml_tensor dst;
};

// Thread 0, once the rows of each expert are counted and before the threads meet. nth threads will call edge_moe_end.
GGML_API struct edge_moe_call * edge_moe_begin(const struct ggml_tensor * dst, const int64_t * row_counts, int nth);

// The expert to compute as the i-th; i runs over all experts of the tensor, from 0, on every thread. Waits until an
// expert's weights for this product have arrived, and says that the thread is done with the expert before.
GGML_API int edge_moe_nth_expert(struct edge_moe_call * call, int i);

// The product to compute for one expert: *view, or dst itself if the weights are to come from the mapping.
GGML_API struct ggml_tensor * edge_moe_at(struct edge_moe_call * call, struct ggml_tensor * dst, int expert, struct edge_moe_view * view);

// Every thread, when it is done with the product.
GGML_API void edge_moe_end(struct edge_moe_call * call);

static inline int edge_moe_expert(struct edge_moe_call * call, int i) {
    return call ? edge_moe_nth_expert(call, i) : i;
}

#ifdef __cplusplus
}

#include <memory>

// true if the cache is asked for and this is an expert tensor, which then nothing should read ahead.
// Throws std::invalid_argument when a setting is bad, with one line that says what it accepts.
GGML_API bool edge_moe_reads(const char * tensor_name);

// A mapping is about to go: whatever serves from it stops.
GGML_API void edge_moe_unmap(const void * mapping);

// Collects the tensors of a model that has just been loaded, then decides, and says so in one line on stderr.
class edge_moe_loader {
public:
    edge_moe_loader();
    ~edge_moe_loader();

    // The tensor's bytes are at this offset of the open file fd, which is mapped at mapping.
    void add(const struct ggml_tensor * tensor, int fd, const void * mapping, uint64_t offset);

    void done(int n_experts, int n_experts_used, bool mapped);

private:
    struct impl;
    std::unique_ptr<impl> pimpl;
};
#endif
