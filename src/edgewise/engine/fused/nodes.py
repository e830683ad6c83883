"""What a step does on features of nodes, behind one interface: in plain PyTorch, or by kernels (`kernel_nodes`)."""

from __future__ import annotations

from torch import Tensor

from edgewise.ops.reference.norm import NormWeights, norm, norm_adjoint


class StepNodes:
    """Plain PyTorch: any type, any device."""

    def norm(self, x: Tensor, weights: NormWeights, added: Tensor | None = None) -> Tensor:
        """Normalise features [n_atoms, n_coefficients, channels], and add [n_atoms, channels] to the scalars."""
        y = norm(x, weights)
        if added is not None:
            y[:, 0] += added
        return y

    def norm_adjoint(self, x: Tensor, weights: NormWeights, gradient: Tensor, base: Tensor | None = None) -> Tensor:
        """Return the gradient of the features for that of the normalised ones, added to `base`."""
        found = norm_adjoint(x, weights, gradient)
        return found if base is None else base + found
