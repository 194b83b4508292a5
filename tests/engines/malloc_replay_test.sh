#!/usr/bin/env bash
# The same program with the C library's malloc and with Berth's: same sum, and all but the recorded step from the arena.
# Usage: malloc_replay_test.sh PROGRAM LIBRARY
set -euo pipefail
alone=$("$1" 40)
said=$(mktemp)
trap 'rm -f "$said"' EXIT
replayed=$(LD_PRELOAD=$2 "$1" 40 2>"$said")
cat "$said"
[ "$alone" = "$replayed" ] || { echo "the sums differ: $alone alone, $replayed with Berth"; exit 1; }
# Three requests a step; one step is recorded, 39 are replayed. The two grids are live together, and the line of sums.
grep -q "berth: 40 runs, arena 589824 bytes, 117 requests served from it, 0 not in the plan" "$said" ||
  { echo "not what was expected of 40 steps"; exit 1; }
