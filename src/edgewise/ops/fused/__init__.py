"""The steps of mode fused: each operation forward, and its adjoint, without autograd."""
