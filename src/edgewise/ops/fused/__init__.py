"""The kernels of mode fused: operations on edges for any lmax >= mmax, forward and adjoint, defined by `ops.reference.edge_steps`.

An edge's features stand in one row: coefficients in m-major order, each with all its channels, so that the operand of each
order's matrix product is a run of columns. Work is cut by edge, by end and by degree: small tasks need few registers, and
many of them hide the time that loads take. Every sum runs in a fixed order.
"""
