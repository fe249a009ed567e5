"""FAENet: energies and forces of structures copied into their frames."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from faenet_calc.frames.frames import FramedGraph
from faenet_calc.network.config import ModelConfig
from faenet_calc.network.embeddings import AtomEmbedding, EdgeEmbedding, GaussianBasis, envelope
from faenet_calc.network.layers import AtomOutput, FeedForward, ForceDecoder, Interaction, edge_width, message_width
from faenet_calc.network.messages import activation


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkOutput:
    """Output of the network for every copy of every structure.

    Attributes:
        energy: [n_frames] energy of each copy.
        node_energy: [n_nodes] contributions that sum to ``energy``; None where upstream's head has none.
        node_force: [n_nodes, 3] direct forces in the frame, or None.
        hidden: [n_nodes, H] final atom states, or None.
        features: [n_nodes, D] last-layer features, in which the energy is linear, or None: the activations of the
            output block for every atom state that it reads.
    """

    energy: Tensor
    node_energy: Tensor | None
    node_force: Tensor | None
    hidden: Tensor | None
    features: Tensor | None = None

    def detach(self) -> "NetworkOutput":
        """The same output without autograd history."""
        return _each(lambda values: values[0].detach(), [self])

    @staticmethod
    def join(parts: "Sequence[NetworkOutput]") -> "NetworkOutput":
        """Concatenate the outputs of consecutive copies."""
        return _each(torch.cat, parts)


def _each(function: Callable[[list[Tensor]], Tensor], outputs: Sequence[NetworkOutput]) -> NetworkOutput:
    """Apply a function to every field that is not None."""
    fields: dict[str, Any] = {}
    for name in (f.name for f in dataclasses.fields(NetworkOutput)):
        values = [getattr(output, name) for output in outputs]
        fields[name] = None if values[0] is None else function(values)
    return NetworkOutput(**fields)


class FAENet(nn.Module):
    """The network of the paper and its variants (see :class:`~faenet_calc.network.config.ModelConfig`)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        act = self.act = activation(config.activation)
        hidden = config.hidden_channels
        self.distance_expansion = GaussianBasis(config.cutoff, config.gaussians)
        self.atom_embedding = AtomEmbedding(config.atoms, hidden, act)
        self.edge_embedding = EdgeEmbedding(config, message_width(config), edge_width(config), act)
        self.interaction_blocks = nn.ModuleList(Interaction(config, act) for _ in range(config.interactions))
        n_feed_forward = config.interactions if config.feed_forward else 0
        self.feed_forward_blocks = nn.ModuleList(
            FeedForward(hidden, config.feed_forward, act) for _ in range(n_feed_forward)
        )
        self.output_block = AtomOutput(hidden, config.energy_weighting == "final", act)
        self.w_lin = nn.Linear(hidden, 1) if config.energy_weighting == "initial" else None
        n_outputs = config.interactions + 1
        self.mlp_skip_co: nn.Linear | None = None
        if config.jumping in ("concat", "concat_energies"):
            self.mlp_skip_co = nn.Linear(n_outputs, 1, bias=config.jumping == "concat_energies")
        elif config.jumping == "concat_atom":
            self.mlp_skip_co = nn.Linear(n_outputs * hidden, hidden)
        self.decoder = ForceDecoder(config.decoder, hidden, act) if config.decoder is not None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier weights, zero biases; equal weights of all blocks in a per-atom jumping connection.

        Where messages are normalised, a gain makes up for what the activation takes away and training starts faster;
        messages are products, so a larger gain (from 1.4 on) explodes in elemental crystals.
        """
        gain = 1.2 if self.config.mean_neighbors > 1 else 1.0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, gain=1.0 if module is self.output_block.lin2 else gain)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for block in self.feed_forward_blocks:
            nn.init.zeros_(cast(FeedForward, block).lin_out.weight)
        if self.mlp_skip_co is not None and self.config.jumping == "concat":
            nn.init.constant_(self.mlp_skip_co.weight, (self.config.interactions + 1) ** -0.5)

    @property
    def has_atom_energies(self) -> bool:
        """Whether the energy is a sum of per-atom contributions."""
        return self.config.jumping != "concat_energies"

    def forward(
        self,
        framed: FramedGraph,
        vectors: Tensor,
        distances: Tensor,
        distance_of_copy: Tensor | None,
        *,
        weights: Tensor | None = None,
        features: bool = False,
    ) -> NetworkOutput:
        """Energies and forces of all copies.

        Args:
            framed: Structures and the indices of their copies.
            vectors: [n_edge_copies, 3] (Å) edge vectors in their frames.
            distances: [n_distances] (Å), each once for all copies that share it.
            distance_of_copy: [n_edge_copies] row of ``distances`` for each copy; None where they are per copy.
            weights: [n_distances] factors of the messages; None for 1.
            features: Return last-layer features.
        """
        graph = framed.graph
        h0 = self.atom_embedding(graph.atomic_numbers, graph.tags)
        h = h0.index_select(0, framed.atom_of_node)

        e = self.edge_embedding(vectors, distances, self.distance_expansion(distances), distance_of_copy)
        factors = self.message_factors(distances, weights)
        cutoff = None if factors is None else factors[:, None]
        if cutoff is not None and distance_of_copy is not None:
            cutoff = cutoff.index_select(0, distance_of_copy)
        alpha = None if self.w_lin is None else self.w_lin(h)[:, 0]
        states = [h]
        for number, block in enumerate(self.interaction_blocks):
            h = h + block(h, e, cutoff, framed)
            if self.feed_forward_blocks:
                h = h + self.feed_forward_blocks[number](h)
            states.append(h)
        if self.config.jumping == "concat_atom":
            assert self.mlp_skip_co is not None
            h = self.act(self.mlp_skip_co(torch.cat(states, dim=1)))
        energy, node_energy = self._energies(h, states, alpha, framed)
        force = None if self.decoder is None else self.decoder(h)
        read = [h] if self.config.jumping in ("none", "concat_atom") else states
        return NetworkOutput(
            energy=energy,
            node_energy=node_energy,
            node_force=force,
            hidden=h,
            features=torch.cat([self.output_block.features(x, alpha) for x in read], dim=1) if features else None,
        )

    def message_factors(self, distances: Tensor, weights: Tensor | None) -> Tensor | None:
        """[n_distances] factors of the messages, the envelope included; None for 1."""
        if not self.config.envelope_power:
            return weights
        smooth = envelope(distances, self.config.cutoff, self.config.envelope_power)
        return smooth if weights is None else smooth * weights

    def _energies(
        self, h: Tensor, states: list[Tensor], alpha: Tensor | None, framed: FramedGraph
    ) -> tuple[Tensor, Tensor | None]:
        """Energy of each copy [n_frames] and, where they exist, its per-node contributions [n_nodes].

        Sums and jumping connections run in the dtype of the geometry: totals are small differences of large numbers.
        """
        jumping, wide = self.config.jumping, framed.graph.positions.dtype
        if jumping in ("none", "concat_atom"):
            node_energy = self.output_block(h, alpha).to(wide)
            return framed.sum_over_nodes(node_energy), node_energy
        weights = None if alpha is None else alpha.repeat(len(states))
        outputs = self.output_block(torch.cat(states), weights).unflatten(0, (len(states), -1)).t().to(wide)
        if self.mlp_skip_co is None:
            node_energy = outputs.sum(dim=1)
            return framed.sum_over_nodes(node_energy), node_energy
        mixing = self.mlp_skip_co.weight[0].to(wide)
        if jumping == "concat_energies":
            return framed.sum_over_nodes(outputs) @ mixing + self.mlp_skip_co.bias.to(wide), None
        node_energy = outputs @ mixing
        return framed.sum_over_nodes(node_energy), node_energy
