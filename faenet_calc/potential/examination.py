"""Uncertainty, distances from the training data and closest contact of one structure in one native call.

The domain guard asks for all three with every new structure. They are those of :meth:`LastLayerUncertainty.deviation`,
:meth:`LastLayerUncertainty.distance` and :meth:`TrainingDomain.closest_contact`, whose dozens of operators on small
tensors take longer than the arithmetic.
"""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from faenet_calc import elements
from faenet_calc.network.native import Library, library
from faenet_calc.potential.domain import TrainingDomain
from faenet_calc.potential.edge_lengths import EdgeLengths
from faenet_calc.potential.uncertainty import LastLayerUncertainty


class _Examiner(ctypes.Structure):
    """``Examiner`` of ``native/examine.h``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("elements", "width", "padded", "components")),
        *((name, ctypes.c_void_p) for name in ("row", "factor", "projection", "mean", "whitening", "limits")),
    )


class Examiner:
    """An uncertainty and a domain in the form that the native function reads.

    Args:
        uncertainty: On the CPU, in float32.
        domain: Of the training data.
        found: The native functions.
    """

    def __init__(self, uncertainty: LastLayerUncertainty, domain: TrainingDomain, found: Library) -> None:
        self.domain = domain
        panel = int(found.function("fused_panel")())
        lanes, (width, components) = panel // 2, uncertainty.projection.shape
        missing, n = -components % panel, len(uncertainty.elements)
        whitening = torch.stack([uncertainty.transposed(row) for row in range(n)])
        row = torch.full((elements.MAX_Z + 1,), -1)
        row[uncertainty.elements] = torch.arange(n)
        self._arrays = {
            "row": row,
            "factor": _columns(uncertainty.transposed(None), lanes),
            "projection": _in_panels(functional.pad(uncertainty.projection, (0, missing)), panel),
            "mean": functional.pad(uncertainty.mean, (0, missing)).contiguous(),
            "whitening": _in_panels(functional.pad(whitening, (0, missing, 0, missing)), panel),
            "limits": domain.contact_limits(torch.float64, torch.device("cpu")),
        }
        self._structure = _Examiner(
            elements=n,
            width=width,
            padded=width + -width % lanes,
            components=components + missing,
            **{name: array.data_ptr() for name, array in self._arrays.items()},
        )
        self._address = ctypes.addressof(self._structure)
        self._examine = found.function("examine")
        self._examine.argtypes = (ctypes.c_void_p, *[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 8)

    def examine(self, features: Tensor, weight: Tensor, numbers: Tensor, lengths: EdgeLengths) -> dict[str, Tensor]:
        """energy_uncertainty, domain_distance and closest_contact of one structure, as in :class:`Prediction`.

        Args:
            features: [n_frames * n_atoms, D] last-layer features, frame after frame; read in float32.
            weight: [n_frames] float64 weights of the frames.
            numbers: [n_atoms] atomic numbers.
            lengths: Of the edges, float64.
        """
        features, weight, (squared, pair) = features.float().contiguous(), weight.contiguous(), lengths
        distance = features.new_empty(numbers.shape[0])
        deviation, contact = squared.new_empty(1), squared.new_empty(1)
        failed = self._examine(
            self._address,
            weight.shape[0],
            numbers.shape[0],
            squared.shape[0],
            features.data_ptr(),
            weight.data_ptr(),
            numbers.data_ptr(),
            squared.data_ptr(),
            pair.data_ptr(),
            distance.data_ptr(),
            deviation.data_ptr(),
            contact.data_ptr(),
        )
        if failed:
            raise MemoryError(f"no memory for the features of {numbers.shape[0]} atoms")
        return {"energy_uncertainty": deviation, "domain_distance": distance, "closest_contact": contact}


def _in_panels(matrices: Tensor, panel: int) -> Tensor:
    """Matrices [..., rows, columns] in the order in which products read them: [..., columns / panel, rows, panel]."""
    return matrices.unflatten(-1, (-1, panel)).movedim(-2, -3).contiguous()


def _columns(transposed: Tensor, lanes: int) -> Tensor:
    """Columns of a lower triangular matrix, each from the vector that contains its diagonal to the end.

    Args:
        transposed: [D, D] upper triangular.
        lanes: Width of a vector; D is padded to a multiple of it.
    """
    padded = functional.pad(transposed, (0, -len(transposed) % lanes))
    return torch.cat([column[number - number % lanes :] for number, column in enumerate(padded)])


def examiner_for(uncertainty: LastLayerUncertainty, domain: TrainingDomain) -> Examiner | None:
    """The examiner of a potential, kept with its uncertainty; None where there is no compiled code for it."""
    kept: Examiner | None = uncertainty.kept.get("examiner")
    if kept is None or kept.domain is not domain:
        found, factor = library(), uncertainty.factor
        if found is None or factor.device.type != "cpu" or factor.dtype != torch.float32:
            return None
        kept = uncertainty.kept["examiner"] = Examiner(uncertainty, domain, found)
    return kept
