"""What the network reads of the edges of a batch, and how they are cut into runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from edgewise.ops import EdgeGeometry, EdgeSegment

WHOLE = (EdgeSegment(0, 0, 0),)
"""One run of everything with the first weights. A single run is never cut, so that its bounds need not be known."""


@dataclass(frozen=True)
class EdgeInputs:
    """What every block reads of the edges.

    Attributes:
        edge_index: [2, n_edges].
        geometry: Radial basis and rotations.
        source: [n_atoms, edge_channels], embedding of each atom as a source.
        target: [n_atoms, edge_channels], embedding of each atom as a target.
        segments: Runs of edges that share SO(2) weights.
    """

    edge_index: Tensor
    geometry: EdgeGeometry
    source: Tensor
    target: Tensor
    segments: tuple[EdgeSegment, ...]

    def chunks(self, size: int | None) -> list[EdgeInputs]:
        """Cut the edges into runs of at most `size`."""
        n_edges = self.edge_index.shape[1]
        if size is None or n_edges <= size:
            return [self]
        return [self.between(start, min(start + size, n_edges)) for start in range(0, n_edges, size)]

    def between(self, start: int, stop: int) -> EdgeInputs:
        """Return the edges start..stop - 1."""
        segments = tuple(
            EdgeSegment(max(item.start, start) - start, min(item.stop, stop) - start, item.weights)
            for item in self.segments
            if item.start < stop and item.stop > start
        )
        return EdgeInputs(
            self.edge_index[:, start:stop], self.geometry.chunk(start, stop), self.source, self.target, segments
        )


def segments_of(counts: Sequence[int], weights_of_system: Sequence[int]) -> tuple[EdgeSegment, ...]:
    """Join neighbouring systems that share weights into runs of edges (or of atoms, given their counts)."""
    segments: list[EdgeSegment] = []
    start = 0
    for n_edges, number in zip(counts, weights_of_system, strict=True):
        if segments and segments[-1].weights == number:
            segments[-1] = EdgeSegment(segments[-1].start, start + n_edges, number)
        elif n_edges or not segments:
            segments.append(EdgeSegment(start, start + n_edges, number))
        start += n_edges
    return tuple(segments) or (EdgeSegment(0, 0, 0),)
