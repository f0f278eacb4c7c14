// SPDX-License-Identifier: MIT
// An invariant that must hold in release builds too: going on would mean wrong text.
#pragma once

#include <cstdlib>

#define EMC_CHECK(condition) \
    do {                     \
        if (!(condition)) {  \
            std::abort();    \
        }                    \
    } while (0)
