"""Sizes that benchmarks share; plain numbers, so that reading a result needs no torch."""

from __future__ import annotations

CUTOFF = 6.0
"""Å, of UMA-S."""

CHANNELS = 128

REFERENCE_EDGES = 78_848
"""Edges of the graphs that operations are timed on; the cutoff of the copper crystal is tuned to it."""

REPEATS = {12: (2, 2, 3), 100: (4, 5, 5), 1000: (10, 10, 10), 4000: (10, 20, 20), 10000: (20, 20, 25)}
"""Repetitions of copper's primitive cell by the number of atoms."""
