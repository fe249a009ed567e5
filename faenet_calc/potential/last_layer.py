"""Uncertainties and distances from the training data that belong to a prediction.

The last part of the forward pass: last-layer features → what :class:`LastLayerUncertainty` and
:class:`TrainingDomain` say about them, in one native call where the domain guard asks for no more.
"""

import dataclasses

import torch
from torch import Tensor

from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.faenet import FAENet, NetworkOutput
from faenet_calc.potential.capabilities import Request
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.potential.examination import Examiner, examiner_for
from faenet_calc.potential.geometry import Geometry, build_geometry
from faenet_calc.potential.network_pass import run_network
from faenet_calc.potential.uncertainty import FORCE_DRAWS, LastLayerUncertainty


def uncertainties(
    uncertainty: LastLayerUncertainty | None,
    config: PotentialConfig,
    geometry: Geometry,
    output: NetworkOutput,
    request: Request,
) -> dict[str, Tensor]:
    """What follows from the last-layer features, by the names of :class:`Prediction`."""
    graph, wanted = geometry.graph, request.properties
    examiner = _examiner(uncertainty, config, geometry, request)
    if examiner is not None:
        assert output.features is not None
        result = examiner.examine(output.features, geometry.frames.weight, graph.atomic_numbers, geometry.lengths)
    else:
        result = _from_features(uncertainty, config, geometry, _atom_features(geometry, output).detach(), wanted)
    if "energy_uncertainty_95" in wanted and uncertainty is not None:
        result["energy_uncertainty_95"] = result["energy_uncertainty"] * uncertainty.half_width
    if "closest_contact" in result and geometry.repulsion is not None:
        result["repulsion_energy"] = graph.sum_over_atoms(geometry.repulsion.detach())
    if "energy_uncertainty" not in wanted:
        result.pop("energy_uncertainty", None)
    return result


def _examiner(
    uncertainty: LastLayerUncertainty | None, config: PotentialConfig, geometry: Geometry, request: Request
) -> Examiner | None:
    """Compiled code for what the guard asks of one structure; None if more is wanted, or if there is none."""
    if uncertainty is None or config.domain is None or not request.examined or not _is_whole(geometry):
        return None
    return examiner_for(uncertainty, config.domain)


def _from_features(
    uncertainty: LastLayerUncertainty | None,
    config: PotentialConfig,
    geometry: Geometry,
    features: Tensor,
    wanted: frozenset[str],
) -> dict[str, Tensor]:
    """Uncertainties and distances from the features [n_atoms, D] of a batch."""
    graph, result = geometry.graph, dict[str, Tensor]()
    if "atom_features" in wanted:
        result["atom_features"] = features
    if uncertainty is None:
        return result
    if not wanted.isdisjoint(("energy_uncertainty", "energy_uncertainty_95")):
        result["energy_uncertainty"] = uncertainty.deviation(graph.sum_over_atoms(features))
    if "energies_uncertainty" in wanted:
        result["energies_uncertainty"] = uncertainty.deviation(features)
    if "domain_distance" in wanted:
        result["domain_distance"] = uncertainty.distance(features, graph.atomic_numbers)
        if config.domain is not None:
            result["closest_contact"] = config.domain.closest_contact(graph, geometry.lengths)
    return result


def forces_uncertainty(
    model: FAENet,
    config: PotentialConfig,
    graph: AtomGraph,
    request: Request,
    uncertainty: LastLayerUncertainty,
    generator: torch.Generator | None,
) -> Tensor:
    """[n_atoms] (eV/Å) root mean square length of force errors over drawn last layers."""
    draws = uncertainty.draws(FORCE_DRAWS, torch.Generator().manual_seed(0)).to(graph.positions.device)
    with torch.enable_grad():
        energy_only = dataclasses.replace(request, gradient=True, stress=False, gradient_spread=False)
        geometry = build_geometry(config, graph, energy_only, generator, True)
        output, _ = run_network(
            model, geometry, geometry.framed, geometry.vectors, geometry.frames.rotation, features=True
        )
        features = _atom_features(geometry, output).sum(dim=0)
        squares = graph.positions.new_zeros(graph.n_atoms)
        for error in draws.to(features.dtype) @ features:
            (force,) = torch.autograd.grad(error, geometry.positions, retain_graph=True)
            squares += force.square().sum(dim=1)
    return (squares / len(draws)).sqrt()


def _atom_features(geometry: Geometry, output: NetworkOutput) -> Tensor:
    """[n_atoms, D] last-layer features of every atom, averaged over frames."""
    assert output.features is not None
    weight = geometry.frames.weight.to(output.features.dtype)
    if _is_whole(geometry):
        return (weight @ output.features.view(len(weight), -1)).view(geometry.graph.n_atoms, -1)
    weighted = output.features * weight[geometry.framed.frame_of_node][:, None]
    empty = weighted.new_zeros(geometry.graph.n_atoms, weighted.shape[1])
    return empty.index_add(0, geometry.framed.atom_of_node, weighted)


def _is_whole(geometry: Geometry) -> bool:
    """Whether every frame is one of the same structure."""
    return geometry.graph.n_graphs == 1 and geometry.frames.parts is None
