"""A second FAENet, written from upstream's formulas and from nothing in the package: the truth of these tests.

One structure, one frame at a time, float64, plain loops over blocks, the filter's linear map on the concatenation of
edge and atom states. ``random_state_dict`` gives weights with upstream's names and shapes.
"""

import itertools

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

DEFAULTS = {
    "hidden_channels": 40, "num_filters": 25, "num_interactions": 2, "num_gaussians": 12, "cutoff": 6.0,
    "tag_hidden_channels": 3, "pg_hidden_channels": 4, "phys_embeds": True, "phys_hidden_channels": 0,
    "act": "swish", "mp_type": "updownscale_base", "complex_mp": False, "graph_norm": True, "second_layer_MLP": True,
    "skip_co": "concat", "energy_head": None, "regress_forces": "direct", "force_decoder_type": "mlp",
    "force_decoder_model_config": {
        kind: {"hidden_channels": 10, "norm": "batch1d"} for kind in ("simple", "mlp", "res", "res_updown")
    },
}  # fmt: skip


class _Builder:
    """Random tensors under upstream's names."""

    def __init__(self, seed: int) -> None:
        self.random, self.state = np.random.default_rng(seed), {}

    def table(self, name: str, *shape: int, scale: float = 1.0) -> None:
        self.state[name] = torch.tensor(self.random.normal(size=shape) * scale)

    def linear(self, name: str, n_out: int, n_in: int) -> None:
        self.table(f"{name}.weight", n_out, n_in, scale=n_in**-0.5)
        self.table(f"{name}.bias", n_out, scale=0.1)

    def norm(self, name: str, size: int, kind: str | None) -> None:
        if kind is None:
            return
        self.state[f"{name}.weight"] = torch.tensor(self.random.uniform(0.5, 1.5, size))
        self.table(f"{name}.bias", size, scale=0.1)
        if kind == "batch1d":
            self.table(f"{name}.running_mean", size, scale=0.1)
            self.state[f"{name}.running_var"] = torch.tensor(self.random.uniform(0.5, 1.5, size))
            self.state[f"{name}.num_batches_tracked"] = torch.tensor(7)


def random_state_dict(config: dict, periods: np.ndarray, groups: np.ndarray, seed: int = 0) -> dict[str, Tensor]:
    """Weights of a network with upstream's constructor arguments."""
    b = _Builder(seed)
    hidden, filters, layers = config["hidden_channels"], config["num_filters"], config["num_interactions"]
    mp, tag, pg = config["mp_type"], config["tag_hidden_channels"], config["pg_hidden_channels"]
    if mp == "simple":
        filters = hidden
    physical = (config["phys_hidden_channels"] or 14) if config["phys_embeds"] else 0
    b.state["distance_expansion.offset"] = torch.linspace(
        0, config["cutoff"], config["num_gaussians"], dtype=torch.float64
    )
    b.table("embed_block.phys_emb.properties", 86, 14)
    b.state["embed_block.phys_emb.group"] = torch.tensor(groups)
    b.state["embed_block.phys_emb.period"] = torch.tensor(periods)
    if config["phys_embeds"] and config["phys_hidden_channels"]:
        b.linear("embed_block.phys_lin", physical, 14)
    if pg:
        b.table("embed_block.period_embedding.weight", 7, pg)
        b.table("embed_block.group_embedding.weight", 19, pg)
    if tag:
        b.table("embed_block.tag_embedding.weight", 3, tag)
    b.table("embed_block.emb.weight", 85, hidden - tag - physical - 2 * pg)
    b.linear("embed_block.lin", hidden, hidden)
    b.linear("embed_block.lin_e1", filters // 2, 3)
    b.linear("embed_block.lin_e12", filters - filters // 2, config["num_gaussians"])
    if config["second_layer_MLP"]:
        b.linear("embed_block.lin_2", hidden, hidden)
        b.linear("embed_block.lin_e2", filters, filters)
    for index in range(layers):
        _block_weights(b, f"interaction_blocks.{index}", config, hidden, filters)
    b.linear("output_block.lin1", hidden // 2, hidden)
    b.linear("output_block.lin2", 1, hidden // 2)
    if config["energy_head"] == "weighted-av-final-embeds":
        b.linear("output_block.w_lin", 1, hidden)
    if config["energy_head"] == "weighted-av-initial-embeds":
        b.linear("w_lin", 1, hidden)
    if config["skip_co"] == "concat":
        b.linear("mlp_skip_co", 1, layers + 1)
    if config["skip_co"] == "concat_atom":
        b.linear("mlp_skip_co", hidden, (layers + 1) * hidden)
    if "direct" in (config["regress_forces"] or ""):
        _decoder_weights(b, config, hidden)
    return b.state


def _block_weights(b: _Builder, name: str, config: dict, hidden: int, filters: int) -> None:
    mp = config["mp_type"]
    if config["graph_norm"]:
        width = filters if "updown" in mp else hidden
        b.norm(f"{name}.graph_norm", width, "plain")
        b.state[f"{name}.graph_norm.mean_scale"] = torch.tensor(b.random.uniform(0.5, 1.0, width))
    if mp == "base":
        b.linear(f"{name}.lin_geom", hidden, filters + 2 * hidden)
    elif mp == "updownscale_base":
        b.linear(f"{name}.lin_geom", filters, filters + 2 * hidden)
    elif mp != "simple":
        b.linear(f"{name}.lin_geom", filters, filters)
    if "updown" in mp:
        b.linear(f"{name}.lin_down", filters, hidden)
        b.linear(f"{name}.lin_up", hidden, 2 * filters if mp == "updown_local_env" else filters)
    else:
        b.linear(f"{name}.lin_h", hidden, hidden)
    if config["complex_mp"]:
        b.linear(f"{name}.other_mlp", hidden, hidden)


def _decoder_weights(b: _Builder, config: dict, hidden: int) -> None:
    kind = config["force_decoder_type"]
    options = config["force_decoder_model_config"][kind]
    c, norm = options["hidden_channels"], options.get("norm")

    def layer(name: str, n_in: int, n_out: int) -> None:
        b.linear(f"decoder.{name}.0", n_out, n_in)
        b.norm(f"decoder.{name}.1", n_out, norm)

    if kind == "simple":
        b.linear("decoder.model.0", c, hidden)
        b.linear("decoder.model.2", 3, c)
        return
    chain = {
        "mlp": [("model", hidden, c)],
        "res": [("mlp_1", hidden, hidden), ("mlp_2", hidden, hidden), ("mlp_3", hidden, c)],
        "res_updown": [("mlp_1", hidden, c), ("mlp_2", c, c), ("mlp_3", c, hidden), ("mlp_4", hidden, c)],
    }[kind]
    for name, n_in, n_out in chain:
        layer(name, n_in, n_out)
    b.linear(f"decoder.{chain[-1][0]}.3", 3, c)


class SpecNetwork:
    """Upstream's forward pass with a state dict, in the dtype of the weights."""

    def __init__(self, config: dict, state: dict[str, Tensor]) -> None:
        self.config, self.w = config, state
        name = config["act"]
        self.act = functional.silu if name == "swish" else getattr(functional, name)

    def lin(self, name: str, x: Tensor) -> Tensor:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def atoms(self, z: Tensor, tags: Tensor) -> Tensor:
        c, w = self.config, self.w
        parts = [w["embed_block.emb.weight"][z]]
        if c["tag_hidden_channels"]:
            parts.append(w["embed_block.tag_embedding.weight"][tags])
        if c["phys_embeds"]:
            known = w["embed_block.phys_emb.properties"][z]
            parts.append(self.lin("embed_block.phys_lin", known) if c["phys_hidden_channels"] else known)
        if c["pg_hidden_channels"]:
            parts.append(w["embed_block.period_embedding.weight"][w["embed_block.phys_emb.period"][z]])
            parts.append(w["embed_block.group_embedding.weight"][w["embed_block.phys_emb.group"][z]])
        h = self.act(self.lin("embed_block.lin", torch.cat(parts, 1)))
        return self.act(self.lin("embed_block.lin_2", h)) if c["second_layer_MLP"] else h

    def edges(self, r: Tensor) -> Tensor:
        mu = self.w["distance_expansion.offset"]
        d = r.norm(dim=1)
        rbf = torch.exp(-0.5 * (d[:, None] - mu) ** 2 / (mu[1] - mu[0]) ** 2)
        e = self.act(torch.cat([self.lin("embed_block.lin_e1", r), self.lin("embed_block.lin_e12", rbf)], 1))
        return self.act(self.lin("embed_block.lin_e2", e)) if self.config["second_layer_MLP"] else e

    def block(self, name: str, h: Tensor, e: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        mp, act = self.config["mp_type"], self.act

        def gather(x: Tensor) -> Tensor:
            return torch.stack([x[dst == atom].sum(0) for atom in range(len(h))])

        both = torch.cat([e, h[src], h[dst]], 1)
        if mp == "simple":
            f = e
        elif mp in ("base", "updownscale_base"):
            f = act(self.lin(f"{name}.lin_geom", both))
        else:
            f = self.lin(f"{name}.lin_geom", e)
            f = act(f) if mp == "updownscale" else f
        x = act(self.lin(f"{name}.lin_down", h)) if "updown" in mp else h
        m = gather(x[src] * f)
        if self.config["graph_norm"]:
            g = {key: self.w[f"{name}.graph_norm.{key}"] for key in ("weight", "bias", "mean_scale")}
            o = m - m.mean(0) * g["mean_scale"]
            m = act(g["weight"] * o / torch.sqrt((o**2).mean(0) + 1e-5) + g["bias"])
        if mp == "updown_local_env":
            delta = self.lin(f"{name}.lin_up", torch.cat([m, gather(e)], 1))
        else:
            delta = act(self.lin(f"{name}.lin_up" if "updown" in mp else f"{name}.lin_h", m))
        return act(self.lin(f"{name}.other_mlp", delta)) if self.config["complex_mp"] else delta

    def energy_of(self, h: Tensor, alpha: Tensor | None) -> Tensor:
        y = self.lin("output_block.lin2", self.act(self.lin("output_block.lin1", h)))
        if self.config["energy_head"] == "weighted-av-final-embeds":
            y = y * self.lin("output_block.w_lin", h)
        return (y if alpha is None else y * alpha).sum()

    def decode(self, h: Tensor) -> Tensor:
        kind = self.config["force_decoder_type"]
        if kind == "simple":
            return self.lin("decoder.model.2", self.act(self.lin("decoder.model.0", h)))
        norm = self.config["force_decoder_model_config"][kind].get("norm")

        def layer(name: str, x: Tensor) -> Tensor:
            y = self.lin(f"decoder.{name}.0", x)
            if norm is not None:
                w = {
                    key: self.w.get(f"decoder.{name}.1.{key}")
                    for key in ("weight", "bias", "running_mean", "running_var")
                }
                if norm == "batch1d":
                    y = (y - w["running_mean"]) / torch.sqrt(w["running_var"] + 1e-5)
                else:
                    y = (y - y.mean(1, keepdim=True)) / torch.sqrt(y.var(1, unbiased=False, keepdim=True) + 1e-5)
                y = y * w["weight"] + w["bias"]
            return self.act(y)

        if kind == "mlp":
            return self.lin("decoder.model.3", layer("model", h))
        if kind == "res":
            return self.lin("decoder.mlp_3.3", layer("mlp_3", layer("mlp_2", layer("mlp_1", h)) + h))
        return self.lin("decoder.mlp_4.3", layer("mlp_4", layer("mlp_3", layer("mlp_2", layer("mlp_1", h))) + h))

    def forward(self, z: Tensor, tags: Tensor, r: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor | None]:
        """Energy and direct forces in the frame of the edge vectors r."""
        skip = self.config["skip_co"]
        h, e = self.atoms(z, tags), self.edges(r)
        alpha = self.lin("w_lin", h) if self.config["energy_head"] == "weighted-av-initial-embeds" else None
        states = [h]
        for index in range(self.config["num_interactions"]):
            h = h + self.block(f"interaction_blocks.{index}", h, e, src, dst)
            states.append(h)
        if skip == "concat_atom":
            h = self.act(self.lin("mlp_skip_co", torch.cat(states, 1)))
        if skip == "concat":
            energy = self.lin("mlp_skip_co", torch.stack([self.energy_of(state, alpha) for state in states]))[0]
        elif skip == "add":
            energy = sum(self.energy_of(state, alpha) for state in states)
        else:
            energy = self.energy_of(h, alpha)
        direct = "direct" in (self.config["regress_forces"] or "")
        return energy, self.decode(h) if direct else None


def upstream_frames(pos: Tensor, frame_averaging: str, fa_method: str) -> list[Tensor]:
    """Upstream's frames: principal axes by descending variance, all signs, axes as columns."""
    if not frame_averaging:
        return [torch.eye(3, dtype=pos.dtype)]
    n = int(frame_averaging[0])
    x = (pos - pos.mean(0))[:, :n]
    values, vectors = torch.linalg.eigh(x.T @ x)
    axes = vectors[:, torch.argsort(values, descending=True)]
    frames = []
    for signs in itertools.product([1.0, -1.0], repeat=n):
        frame = torch.eye(3, dtype=pos.dtype)
        frame[:n, :n] = axes * torch.tensor(signs, dtype=pos.dtype)
        if not fa_method.startswith("se3") or torch.linalg.det(frame) > 0:
            frames.append(frame)
    return frames


def predict(
    config: dict, state: dict, data: dict, frame_averaging: str, fa_method: str
) -> tuple[float, np.ndarray | None]:
    """Energy and forces of one structure, averaged over frames one after another (frames are constants)."""
    network = SpecNetwork(config, state)
    pos, (src, dst) = data["pos"].detach(), data["edge_index"]
    energies, forces = [], []
    for frame in upstream_frames(pos, frame_averaging, fa_method):
        turned = (pos @ frame).requires_grad_()
        r = turned[src] - turned[dst] + data["cell_offsets"] @ (data["cell"] @ frame)
        energy, direct = network.forward(data["atomic_numbers"], data["tags"], r, src, dst)
        energies.append(energy.item())
        if config["regress_forces"] == "from_energy":
            direct = -torch.autograd.grad(energy, turned)[0]
        if direct is not None:
            forces.append((direct @ frame.T).detach().numpy())
    return float(np.mean(energies)), np.mean(forces, axis=0) if forces else None
