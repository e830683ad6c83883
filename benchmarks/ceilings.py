"""What a GPU can do at most, measured: what shares of a ceiling are shares of. Plain numbers, so that a report needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of one GPU.

    Attributes:
        bytes_per_second: Of its memory, bytes read and bytes written together.
        flops_per_second: Of products of float16 with sums in float32; a multiplication and an addition are two.
        source: How they were measured.
    """

    bytes_per_second: float
    flops_per_second: float
    source: str


H200 = Ceilings(4.24e12, 712e12, "measured: device copy of 2 GiB float32, float16 product of 8192^3")

OF_GPU = {"NVIDIA H200": H200}
"""By torch's name of the GPU."""
