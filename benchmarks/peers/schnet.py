"""SchNet of PyG with the interface of a faenet-calc potential.

Only the network differs. Graphs (the periodic neighbor list; SchNet's `radius_graph` ignores the cell), element
references, scale, forces = -dE/dx and stress are those of :class:`faenet_calc.Potential`, with a single frame that has
no effect, since SchNet depends on distances only. Sums over atoms are in float64.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch_geometric.nn.models import SchNet

from faenet_calc.frames.config import FramesConfig
from faenet_calc.frames.frames import FramedGraph
from faenet_calc.network.config import ModelConfig
from faenet_calc.network.faenet import NetworkOutput
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.potential.config import EnergyConfig, NormalizationConfig, PotentialConfig
from faenet_calc.potential.device import pick_device
from faenet_calc.potential.potential import Potential
from faenet_calc.settings import from_mapping, to_mapping

KEY = "schnet"  # in the metadata of its checkpoints
MAX_Z = 99  # rows of SchNet's embedding minus one


@dataclass(frozen=True, kw_only=True)
class SchNetSize:
    """Width and depth of SchNet, with the names and defaults of PyG."""

    hidden_channels: int = 128
    num_filters: int = 128
    num_interactions: int = 6
    num_gaussians: int = 50


class GivenEdges:
    """Interaction graph for SchNet that returns given edges.

    Attributes:
        edge_index: [2, n_edges] rows [neighbor, center].
        distances: [n_edges] (Å), of the periodic images chosen by the neighbor list.
    """

    def __init__(self) -> None:
        self.edge_index, self.distances = torch.empty(2, 0, dtype=torch.long), torch.empty(0)

    def __call__(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Edges as SchNet expects them; positions and batch are ignored."""
        return self.edge_index, self.distances


class SchNetNetwork(nn.Module):
    """SchNet with the call signature of FAENet."""

    decoder = None
    has_atom_energies = True

    def __init__(self, size: SchNetSize, cutoff: float) -> None:
        super().__init__()
        self.edges = GivenEdges()
        self.schnet = SchNet(**asdict(size), cutoff=cutoff, interaction_graph=self.edges)

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
        """Energies of all copies; arguments as in :meth:`faenet_calc.network.faenet.FAENet.forward`."""
        if weights is not None or features:
            raise NotImplementedError("SchNet has neither weighted messages nor last-layer features")
        per_copy = distances if distance_of_copy is None else distances.index_select(0, distance_of_copy)
        self.edges.edge_index, self.edges.distances = torch.stack([framed.neighbor, framed.centre]), per_copy
        numbers = framed.graph.atomic_numbers.index_select(0, framed.atom_of_node)
        # Every atom is its own "molecule" for SchNet's readout: the sum over atoms is ours.
        alone = torch.arange(framed.n_nodes, device=numbers.device)
        node_energy = self.schnet(numbers, framed.graph.positions, alone)[:, 0].to(framed.graph.positions.dtype)
        return NetworkOutput(
            energy=framed.sum_over_nodes(node_energy), node_energy=node_energy, node_force=None, hidden=node_energy
        )


class SchNetPotential(Potential):
    """A potential whose network is SchNet; of the network section of its settings only the cutoff is meant.

    Args:
        size: Of the network.
        cutoff: (Å).
        normalization: References and scale, as fitted for our own network.
        energy: What the energy means.
        trained_elements: Atomic numbers in the training set.
    """

    def __init__(
        self,
        size: SchNetSize,
        *,
        cutoff: float,
        normalization: NormalizationConfig,
        energy: EnergyConfig | None = None,
        trained_elements: tuple[int, ...] = (),
    ) -> None:
        nn.Module.__init__(self)  # Potential's own would build our network
        self.size, self.metadata, self.uncertainty = size, {}, None
        self.config = PotentialConfig(
            model=ModelConfig(cutoff=cutoff),
            frames=FramesConfig(kind="none", mode="one"),
            energy=energy or EnergyConfig(),
            normalization=normalization,
            supported_elements=tuple(range(1, MAX_Z + 1)),
            trained_elements=trained_elements,
            name="PyG SchNet",
        )
        self.model: Any = SchNetNetwork(size, cutoff)


def save(potential: SchNetPotential, path: Path) -> None:
    """One .safetensors file with the settings in its metadata."""
    described = {"size": asdict(potential.size), "config": to_mapping(potential.config)}
    save_model(potential.model, str(path), metadata={KEY: json.dumps(described)})


def load(path: Path, device: str | None = None) -> SchNetPotential:
    """A potential from :func:`save`, ready to predict."""
    with safe_open(path, framework="pt") as stream:
        described = json.loads(stream.metadata()[KEY])
    config = from_mapping(PotentialConfig, described["config"], source=str(path))
    potential = SchNetPotential(
        SchNetSize(**described["size"]),
        cutoff=config.model.cutoff,
        normalization=config.normalization,
        energy=config.energy,
        trained_elements=config.trained_elements,
    )
    load_model(potential.model, path)  # knows that SchNet has every filter network under two names
    return potential.eval().requires_grad_(False).to(pick_device(device))


def open_model(name: str, device: str | None = None) -> Potential:
    """A shipped model, one of our checkpoints, or a SchNet."""
    path = Path(name)
    if path.is_file():
        with safe_open(path, framework="pt") as stream:
            if KEY in (stream.metadata() or {}):
                return load(path, device)
    return load_potential(name, device=device)
