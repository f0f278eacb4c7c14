// SPDX-License-Identifier: MIT
// Where one thread hands something to another. Nothing in a build that is used; the stress test compiles the engine
// with a function of its own here, which delays at random, so that rare interleavings become common.
#pragma once

#ifdef EMC_TEST_HAND_OVER
void emc_test_hand_over();
#define EMC_HAND_OVER() emc_test_hand_over()
#else
#define EMC_HAND_OVER() ((void) 0)
#endif
