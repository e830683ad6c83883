"""How much room a step makes for edges: a function of their number alone, so that the bits of a result never depend on history."""

from __future__ import annotations

SMALLEST_STEP = 16
"""Capacities are multiples of this many edges at least."""

STEPS_PER_DOUBLING = 64
"""Between a power of two and the next there are this many capacities, so that at most 1/64 of a step's rows is padding."""


def capacity_of(n_edges: int) -> int:
    """Return the number of edges that a step with this many makes room for.

    At most 3 % more from 512 edges on; below, at most 16 edges more.
    """
    largest_power = 1 << max(0, n_edges.bit_length() - 1)
    step = max(SMALLEST_STEP, largest_power // STEPS_PER_DOUBLING)
    return max(1, -(-n_edges // step)) * step
