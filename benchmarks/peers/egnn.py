"""E(n)-equivariant graph network (Satorras et al., ICML 2021, Eq. 3-6) on given edges."""

import torch
from torch import Tensor, nn


class EGNNLayer(nn.Module):
    """One layer: messages from features and squared distances, which move positions along the edges.

    Args:
        channels: Width of features and messages.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.edge = _perceptron(2 * channels + 1, channels, channels)
        self.move = _perceptron(channels, channels, 1)
        self.node = _perceptron(2 * channels, channels, channels)

    def forward(self, features: Tensor, positions: Tensor, centre: Tensor, neighbor: Tensor) -> tuple[Tensor, Tensor]:
        """New features [n_atoms, channels] and positions [n_atoms, 3]."""
        away = positions[centre] - positions[neighbor]
        squared = away.square().sum(dim=1, keepdim=True)
        message = self.edge(torch.cat([features[centre], features[neighbor], squared], dim=1))
        n_edges = torch.bincount(centre, minlength=len(positions)).clamp(min=1)[:, None]
        moved = torch.zeros_like(positions).index_add(0, centre, away * self.move(message)) / n_edges
        received = torch.zeros_like(features).index_add(0, centre, message)
        return features + self.node(torch.cat([features, received], dim=1)), positions + moved


class EGNN(nn.Module):
    """Layers on atoms of one kind, with a scalar per atom and its displacement as outputs.

    Args:
        channels: Width.
        layers: Number of layers.
    """

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(1, channels))
        self.layers = nn.ModuleList(EGNNLayer(channels) for _ in range(layers))
        self.readout = _perceptron(channels, channels, 1)

    def forward(self, positions: Tensor, centre: Tensor, neighbor: Tensor) -> tuple[Tensor, Tensor]:
        """Invariant scalars [n_atoms] and equivariant vectors [n_atoms, 3]."""
        features, moved = self.embedding.expand(len(positions), -1), positions
        for layer in self.layers:
            features, moved = layer(features, moved, centre, neighbor)
        return self.readout(features)[:, 0], moved - positions


def _perceptron(n_in: int, hidden: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n_in, hidden), nn.SiLU(), nn.Linear(hidden, n_out))
