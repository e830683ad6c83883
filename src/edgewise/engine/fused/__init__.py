"""Mode fused: one step, forward and adjoint, written out over operations that do not know autograd."""
