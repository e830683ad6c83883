"""The weights of one mixture of experts, laid out as the steps of mode fused read them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from edgewise.model.backbone import DEGREE_RESCALE, Backbone, Block, ModelWeights
from edgewise.model.layers import EquivariantNorm, FeedForward, RadialMLP
from edgewise.ops.fused.row_format import RowFormat
from edgewise.ops.fused.so2_linear import SO2Map, so2_map
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
        last: [n_out, columns], made by `RowFormat.last_matrix`.
        last_bias: [n_out], in the type of results.
        row_format: Of the last layer.
    """

    basis: Tensor
    source_table: Tensor
    target_table: Tensor
    hidden: HiddenWeights
    last: Tensor
    last_bias: Tensor
    row_format: RowFormat


@dataclass(frozen=True)
class BlockWeights:
    """One block (MODEL.md section 8)."""

    norm_1: NormWeights
    radial: RadialWeights
    conv_1: SO2Map
    conv_2: SO2Map
    norm_2: NormWeights
    feed_forward: FeedForwardWeights


@dataclass(frozen=True, eq=False)
class StepWeights:
    """All weights of the backbone that act on edges or on node features."""

    degree: RadialWeights
    blocks: tuple[BlockWeights, ...]
    norm: NormWeights

    @property
    def radial_networks(self) -> tuple[RadialWeights, ...]:
        """The radial networks, that of the embedding first."""
        return (self.degree, *(block.radial for block in self.blocks))


def prepare(backbone: Backbone, mixed: ModelWeights, row_format: RowFormat) -> StepWeights:
    """Lay out the weights of one mixture.

    Args:
        backbone: Where the weights that have no experts come from.
        mixed: The mixed weights of every block.
        row_format: Of the rows of edges that are multiplied.
    """
    degree = backbone.edge_degree_embedding.rad_func
    of_degree = _radial(backbone, degree, degree.mixed(None), row_format.of_embedding, 1 / DEGREE_RESCALE)
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
                radial=_radial(backbone, block.edge_wise.so2_conv_1.rad_func, layer.radial, row_format),
                conv_1=so2_map(layer.message.conv_1, row_format),
                conv_2=so2_map(layer.message.conv_2, row_format),
                norm_2=norm_2.weights(),
                feed_forward=feed_forward.weights(layer.feed_forward),
            )
        )
    norm = backbone.norm
    assert isinstance(norm, EquivariantNorm)
    return StepWeights(degree=of_degree, blocks=tuple(blocks), norm=norm.weights())


def _radial(
    backbone: Backbone, network: RadialMLP, weights: tuple[Tensor, ...], row_format: RowFormat, scale: float = 1.0
) -> RadialWeights:
    basis, source, target = network.split_first(weights)
    last_bias = network.last_bias * scale
    return RadialWeights(
        basis=basis,
        source_table=functional.linear(backbone.source_embedding.weight, source),
        target_table=functional.linear(backbone.target_embedding.weight, target, network.first_bias),
        hidden=network.hidden_weights(weights),
        last=row_format.last_matrix(weights[-1] * scale, last_bias),
        last_bias=last_bias.to(row_format.results),
        row_format=row_format,
    )
