#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# zram swap as L4T sets it up: half of the memory, spread over one device a core.
set -eu

cores=$(nproc)
memory_kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
each_kib=$((memory_kib / 2 / cores))

modprobe zram num_devices="$cores"
i=0
while [ "$i" -lt "$cores" ]; do
    echo "${each_kib}K" >"/sys/block/zram$i/disksize"
    mkswap "/dev/zram$i" >/dev/null
    swapon --priority 5 "/dev/zram$i"
    i=$((i + 1))
done
