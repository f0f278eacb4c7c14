# SPDX-License-Identifier: GPL-3.0-or-later
"""edge-moe-clock-floor: hold the GPU's minimum clock up while a MoE model with experts on the CPU computes.

Start reading at `controller.py` (what is done to the clock and in which order), then `activity.py` (when).
Dependencies run one way: __main__ -> loop -> {controller, libraries, processes} -> {activity, baseline, elf, ...}.
"""
