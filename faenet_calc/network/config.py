"""Settings of the network."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

Activation = Literal[
    "swish", "silu", "relu", "gelu", "tanh", "softplus", "elu", "leaky_relu", "mish", "sigmoid", "selu", "celu",
    "relu6", "hardswish", "hardtanh", "softsign", "logsigmoid", "tanhshrink",
]  # fmt: skip
MessageKind = Literal[
    "simple", "edge_filter", "base", "updownscale", "updownscale_base", "updown_local_env", "attention"
]
EdgeFeatures = Literal["r_and_distance", "r", "harmonics", "all"]
JumpingConnection = Literal["none", "add", "concat", "concat_atom", "concat_energies"]
EnergyWeighting = Literal["none", "initial", "final"]
DecoderKind = Literal["simple", "mlp", "res", "res_updown"]
DecoderNorm = Literal["none", "batch", "layer"]

Width = Annotated[int, Ge(1)]
OptionalWidth = Annotated[int, Ge(0)]  # 0 leaves the part out


@dataclass(frozen=True, kw_only=True)
class AtomEmbeddingConfig:
    """Initial features of an atom (paper, "Embedding Block").

    Attributes:
        n_elements: Rows of the atomic-number table minus one; Z up to this number can be embedded.
        tag_channels: Width of the tag embedding (0 sub-surface, 1 surface, 2 adsorbate); 0 leaves tags out.
        group_period_channels: Width of each of the group and period embeddings; 0 leaves both out.
        properties: Which table of physical properties is appended: none, our own, or upstream's 14 columns.
        properties_channels: Width of a linear layer on the properties; 0 appends them as they are.
        second_layer: Two linear layers instead of one (also in the edge embedding).
    """

    n_elements: Annotated[int, Interval(ge=1, le=118)] = 118
    tag_channels: OptionalWidth = 0
    group_period_channels: OptionalWidth = 16
    properties: Literal["none", "modern", "upstream"] = "modern"
    properties_channels: OptionalWidth = 0
    second_layer: bool = True


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The direct-force head."""

    kind: DecoderKind = "mlp"
    channels: Width = 128
    norm: DecoderNorm = "layer"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network inside a potential.

    Attributes:
        hidden_channels: Width H of the atom state.
        filters: Width F of filters and messages (``simple`` and ``attention`` use H).
        edge_channels: Width E of the edge embedding, for messages with a linear map of it and ``atoms.second_layer``;
            0 for F. Directions and distances are four numbers, so that half of F loses little and is faster.
        interactions: Number L of interaction blocks.
        gaussians: Number G of radial basis functions.
        cutoff: Largest distance of an edge (Å).
        envelope_power: Exponent p of the polynomial cutoff envelope on every message; 0 for the hard cutoff of the
            paper.
        message: Kind of messages (paper Eq. 7 and its ablations).
        edge_features: Features of an edge; the paper uses ``r_and_distance``.
        split_filter: Compute the node terms of a filter's linear map once per node. The function is the same at about
            half the cost; off for imported weights, so that their rounding equals that of upstream.
        extra_layer: One more linear layer in every interaction ("complex MP").
        feed_forward: Width of a per-atom feed-forward layer after each interaction block; 0 for none. An atom has about
            forty edges, so this width costs little.
        graph_norm: GraphNorm per structure and frame, required by upstream weights; makes the energy non-extensive.
        mean_neighbors: Messages are divided by the square root of this number; 1 for no scaling.
        jumping: How the outputs of all blocks are combined. ``concat`` mixes per-atom outputs without bias;
            ``concat_energies`` is upstream's mix of structure energies with a bias (not extensive).
        energy_weighting: Weights of the per-atom outputs from the initial or final atom state.
        decoder: Direct-force head, or None.
    """

    hidden_channels: Width = 128
    filters: Width = 128
    edge_channels: OptionalWidth = 0
    interactions: Annotated[int, Ge(0)] = 4
    gaussians: Annotated[int, Ge(2)] = 32
    cutoff: Annotated[float, Ge(1.0)] = 5.0  # no two atoms are bound at less than 0.7 Å
    activation: Activation = "swish"
    envelope_power: Annotated[int, Ge(0)] = 6
    message: MessageKind = "updownscale_base"
    edge_features: EdgeFeatures = "r_and_distance"
    split_filter: bool = True
    extra_layer: bool = False
    feed_forward: OptionalWidth = 0
    graph_norm: bool = False
    mean_neighbors: Annotated[float, Gt(0)] = 1.0
    jumping: JumpingConnection = "concat"
    energy_weighting: EnergyWeighting = "none"
    atoms: AtomEmbeddingConfig = field(default_factory=AtomEmbeddingConfig)
    decoder: DecoderConfig | None = None

    def __post_init__(self) -> None:
        if self.edge_channels and (self.message in ("simple", "attention") or not self.atoms.second_layer):
            raise ValueError(
                f"edge_channels = {self.edge_channels} with message = {self.message!r} and atoms.second_layer = "
                f"{self.atoms.second_layer}, expected 0: the edge embedding has a width of its own only if it has a "
                "second layer and messages multiply it by a matrix"
            )
