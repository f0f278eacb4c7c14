// SPDX-License-Identifier: MIT
// Memory that direct reads fill, in huge pages where the kernel has some.
//
// A direct read hands the drive the physical pages of its buffer. From huge pages that is one or two stretches, where
// small pages give one each: less to pin, fewer and larger commands, and fewer address translations missed when
// experts are multiplied. The kernel may have none to give; then pages are small and all else is the same.
#pragma once

#include <cstdint>

// bytes of zeroed memory, taken as it is touched, to be returned with munmap(2); or nullptr and errno. REQUIRES: bytes > 0.
void * emc_slab_map(uint64_t bytes);
