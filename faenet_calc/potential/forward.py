"""The forward pass: a batch of graphs through frames and network, averaged, with its derivatives.

AtomGraph → Geometry → NetworkPass → averages → derivatives → uncertainties → Prediction. In training the pass is one
autograd graph. Otherwise the network is differentiated where it is evaluated, and its autograd graph is not kept.
"""

import torch

from faenet_calc.graphs.graph import AtomGraph
from faenet_calc.network.engine import engine_for
from faenet_calc.network.faenet import FAENet
from faenet_calc.potential.averages import averages
from faenet_calc.potential.capabilities import Request
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.potential.derivatives import autograd_derivatives, derivatives
from faenet_calc.potential.geometry import build_geometry
from faenet_calc.potential.last_layer import forces_uncertainty, uncertainties
from faenet_calc.potential.network_pass import (
    NetworkPass,
    fits_engine,
    fits_training_engine,
    run_engine,
    run_in_parts,
    run_network,
    run_training_engine,
)
from faenet_calc.potential.prediction import Prediction
from faenet_calc.potential.uncertainty import LastLayerUncertainty


def forward(
    model: FAENet,
    config: PotentialConfig,
    graph: AtomGraph,
    request: Request,
    *,
    uncertainty: LastLayerUncertainty | None = None,
    generator: torch.Generator | None = None,
    create_graph: bool = False,
    memory_bytes: int | None = None,
) -> Prediction:
    """Predict a batch of graphs.

    Args:
        model: The network.
        config: Of the potential.
        graph: The structures, after any rewiring.
        request: What to predict.
        uncertainty: Of the potential, where it is requested.
        generator: For stochastic frames.
        create_graph: Keep gradient forces and stress differentiable, for training on them.
        memory_bytes: Budget of a part; None for the default of the device. Not used in training.
    """
    training = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in model.parameters())
    in_one_graph = training or create_graph
    with torch.set_grad_enabled(training or request.gradient):
        geometry = build_geometry(config, graph, request, generator, in_one_graph)
        if create_graph and training and fits_training_engine(model, graph, request):
            network = run_training_engine(model, config, geometry)
        elif in_one_graph:
            output, copies = run_network(
                model, geometry, geometry.framed, geometry.vectors, geometry.frames.rotation, features=request.features
            )
            network = NetworkPass(output=output, copies=copies)
        elif fits_engine(config.model, geometry, request) and (engine := engine_for(model)) is not None:
            network = run_engine(engine, model, config, geometry, request, memory_bytes)
        else:
            network = run_in_parts(model, config, geometry, request, memory_bytes)
        result = averages(config.normalization, geometry, network.output, request)
        if request.gradient and in_one_graph:
            result |= autograd_derivatives(
                geometry, network, result["energy"], request, create_graph=create_graph, retain_graph=training
            )
        elif request.gradient:
            result |= derivatives(geometry, network, result["energy"], request)
    if request.features:
        result |= uncertainties(uncertainty, config, geometry, network.output, request)
    if "forces_uncertainty" in request.properties:
        assert uncertainty is not None
        result["forces_uncertainty"] = forces_uncertainty(model, config, graph, request, uncertainty, generator)
    if not in_one_graph:
        result = {name: value.detach() for name, value in result.items()}
    if "forces" in request.properties:
        return Prediction(**result, forces=result[f"{request.forces}_forces"])
    result.pop("gradient_forces", None)
    return Prediction(**result)
