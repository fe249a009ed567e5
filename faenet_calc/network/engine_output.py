"""Results of the fused evaluation of a network, on the CPU (``engine.py``) or a GPU (``device_engine.py``)."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineOutput:
    """Energies of all frames and derivatives of Σ_f seed_f E_f; fields that were not requested are None.

    Attributes:
        energy: [n_frames] float64.
        node_energy: [n_nodes] float64, frame after frame; None where the energy is not a sum over atoms.
        hidden: [n_nodes, H] in the dtype of the network, final atom states.
        features: [n_nodes, n_states * (H // 2)] in the dtype of the network, last-layer features of all states that the
            output block reads.
        grad_vectors: [n_edges, 3] float64.
        grad_rotation: [n_frames, 3, 3] float64; two frames that share edges have their sum at the first one.
        grad_factor: [n_edges] float64, derivatives with respect to the factors of the messages.
        grad_copies: [n_edge_copies, 3] float64, derivatives of each frame by itself.
    """

    energy: Tensor
    node_energy: Tensor | None
    hidden: Tensor | None
    features: Tensor | None
    grad_vectors: Tensor | None
    grad_rotation: Tensor | None
    grad_factor: Tensor | None
    grad_copies: Tensor | None
