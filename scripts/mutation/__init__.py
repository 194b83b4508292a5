"""The parts of scripts/mutate: where a source can be changed, the build that has every change, and the runs."""
