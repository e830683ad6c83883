"""Kernels of mode fused in CUDA C++, compiled at run time by NVRTC.

They do what the Triton kernels of the folder above do, by the same formulas and at the same places (`layout`), and can take
their place where `missing` has nothing to say. NVRTC comes with every torch for GPUs; no compiler, header or toolkit has to
be installed.
"""

from edgewise.ops.fused.cuda._kernels import keep_code_in, missing

__all__ = ["keep_code_in", "missing"]
