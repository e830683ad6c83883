"""The weights of one mixture of experts, laid out as the steps of mode fused read them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from edgewise.model.backbone import Backbone, Block, ModelWeights
from edgewise.model.layers import EquivariantNorm, FeedForward, RadialMLP
from edgewise.ops import SO2Weights
from edgewise.ops.reference.feed_forward import FeedForwardWeights
from edgewise.ops.reference.norm import NormWeights
from edgewise.ops.reference.radial_network import HiddenWeights


@dataclass(frozen=True)
class RadialWeights:
    """One radial network; what its first layer reads of the elements is multiplied out once, as tables.

    Attributes:
        basis: [width, n_basis], the part of the first layer that reads the gaussians.
        source_table: [n_elements, width], the part that reads the element of the source.
        target_table: [n_elements, width], the same for the target, with the bias.
        hidden: The layers between the first and the last.
        last: [n_out, width].
        last_bias: [n_out].
    """

    basis: Tensor
    source_table: Tensor
    target_table: Tensor
    hidden: HiddenWeights
    last: Tensor
    last_bias: Tensor


@dataclass(frozen=True)
class BlockWeights:
    """One block (MODEL.md section 8)."""

    norm_1: NormWeights
    radial: RadialWeights
    conv_1: SO2Weights
    conv_2: SO2Weights
    norm_2: NormWeights
    feed_forward: FeedForwardWeights


@dataclass(frozen=True)
class StepWeights:
    """All weights of the backbone that act on edges or on node features."""

    degree: RadialWeights
    blocks: tuple[BlockWeights, ...]
    norm: NormWeights


def prepare(backbone: Backbone, mixed: ModelWeights) -> StepWeights:
    """Lay out the weights of one mixture.

    Args:
        backbone: Where the weights that have no experts come from.
        mixed: The mixed weights of every block.
    """
    degree = backbone.edge_degree_embedding.rad_func
    blocks: list[BlockWeights] = []
    for block, layer in zip(backbone.blocks, mixed, strict=True):
        assert isinstance(block, Block)
        norm_1, norm_2, feed_forward = block.norm_1, block.norm_2, block.atom_wise
        assert isinstance(norm_1, EquivariantNorm)
        assert isinstance(norm_2, EquivariantNorm)
        assert isinstance(feed_forward, FeedForward)
        blocks.append(
            BlockWeights(
                norm_1=norm_1.weights(),
                radial=_radial(backbone, block.edge_wise.so2_conv_1.rad_func, layer.radial),
                conv_1=layer.message.conv_1,
                conv_2=layer.message.conv_2,
                norm_2=norm_2.weights(),
                feed_forward=feed_forward.weights(layer.feed_forward),
            )
        )
    norm = backbone.norm
    assert isinstance(norm, EquivariantNorm)
    return StepWeights(degree=_radial(backbone, degree, degree.mixed(None)), blocks=tuple(blocks), norm=norm.weights())


def _radial(backbone: Backbone, network: RadialMLP, weights: tuple[Tensor, ...]) -> RadialWeights:
    basis, source, target = network.split_first(weights)
    return RadialWeights(
        basis=basis,
        source_table=functional.linear(backbone.source_embedding.weight, source),
        target_table=functional.linear(backbone.target_embedding.weight, target, network.first_bias),
        hidden=network.hidden_weights(weights),
        last=weights[-1],
        last_bias=network.last_bias,
    )


def n_bytes(weights: StepWeights) -> int:
    """Return the memory of the weights that belong to one mixture alone."""
    maps = [item for block in weights.blocks for item in (block.conv_1, block.conv_2)]
    tensors = [tensor for item in maps for tensor in (*item.blocks, item.bias)]
    tensors += [tensor for block in weights.blocks for tensor in (block.radial.source_table, block.radial.target_table)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
