"""Frame averaging of foreign models: exact with the wrapper, and not without it."""

import copy
from functools import partial

import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.neighborlist import neighbor_list
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import DimeNetPlusPlus, SchNet, global_add_pool
from torch_geometric.nn.models import dimenet as dimenet_module
from torch_geometric.transforms import Compose

from faenet_calc.errors import InputError
from faenet_calc.frames import FrameAveraging, frame_averaged
from faenet_calc.frames.lattice import random_rotation

RANKS = {"energy": "scalar", "forces": "vector", "stress": "tensor"}


def data_of(atoms):
    centre, neighbor, shift = neighbor_list("ijS", atoms, 3.0)
    return Data(
        z=torch.as_tensor(atoms.numbers),
        pos=torch.as_tensor(atoms.positions),
        cell=torch.as_tensor(atoms.cell.array)[None],
        pbc=torch.as_tensor(atoms.pbc)[None],
        edge_index=torch.stack([torch.as_tensor(neighbor), torch.as_tensor(centre)]),
        shift=torch.as_tensor(shift, dtype=torch.float64),
    )


def distorted(name):
    atoms = molecule(name)
    atoms.rattle(0.1, seed=0)  # chiral, so that reflections are seen
    return atoms


MOLECULES = Batch.from_data_list([data_of(distorted(name)) for name in ("CH3CH2OH", "C3H9N", "CH3COOH")])
SYMMETRIC = Batch.from_data_list([data_of(molecule(name)) for name in ("CH4", "C6H6", "CO2", "NH3")])
SLAB = fcc111("Cu", (2, 2, 3), vacuum=8.0)
SLAB.rattle(0.1, seed=0)
SLABS = Batch.from_data_list([data_of(SLAB), data_of(SLAB * (2, 1, 1))])
CRYSTAL = bulk("Cu", cubic=True) * (2, 1, 1)
CRYSTAL.rattle(0.1, seed=0)
WIRE = Atoms("Cu3", positions=[[0, 0, 0], [0.3, 0.2, 2.5], [-0.4, 0.1, 5.1]], cell=[0, 0, 7.5], pbc=[0, 0, 1])
MIXED = Batch.from_data_list([data_of(one) for one in (SLAB, CRYSTAL, distorted("CH3COOH"), WIRE)])


class Perceptron(nn.Module):
    """Coordinates of atoms into an MLP: depends on origin and orientation."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 13)).double()

    def forward(self, batch):
        found = self.layers(torch.cat([batch.pos, batch.z[:, None].double() / 10], dim=1))
        return {
            "energy": global_add_pool(found[:, 0], batch.batch),
            "forces": found[:, 1:4],
            "stress": global_add_pool(found[:, 4:], batch.batch).reshape(-1, 3, 3),
        }


class Transformer(nn.Module):
    """Self-attention between the atoms of a structure, on raw coordinates."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 1)
        self.double()

    def forward(self, batch):
        tokens = self.embed(torch.cat([batch.pos, batch.z[:, None].double() / 10], dim=1))
        apart = batch.batch[:, None] != batch.batch[None]
        mixed, _ = self.attend(tokens[None], tokens[None], tokens[None], attn_mask=apart)
        return global_add_pool(self.head(torch.tanh(mixed[0])), batch.batch)


class Messages(nn.Module):
    """ForceNet-like: an MLP of edge vectors, so that periodic structures work."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 4)).double()

    def forward(self, batch):
        neighbor, centre = batch.edge_index
        offset = torch.einsum("ek,ekx->ex", batch.shift, batch.cell[batch.batch[centre]])
        found = self.layers(batch.pos[neighbor] - batch.pos[centre] + offset)
        per_atom = found.new_zeros(len(batch.pos), 4).index_add(0, centre, found)
        return {"energy": global_add_pool(torch.tanh(per_atom[:, 0]), batch.batch), "forces": per_atom[:, 1:]}


def seeded(model):
    torch.manual_seed(0)
    return model().eval()


def moved(batch, turn, shift=1.0):
    changed = copy.copy(batch)
    changed.pos, changed.cell = batch.pos @ turn + shift, batch.cell @ turn
    return changed


def turns():
    generator = torch.Generator().manual_seed(3)
    proper = random_rotation(generator)
    return {"rotation": proper, "reflection": proper @ torch.diag(torch.tensor([1.0, 1.0, -1.0]).double())}


@torch.no_grad()
def deviations(model, batch, turn):
    """Largest difference of each output from the transformed output."""
    before, after = model(batch), model(moved(batch, turn))
    before, after = ({"energy": out} if isinstance(out, torch.Tensor) else out for out in (before, after))
    expected = {name: value for name, value in before.items()}
    if "forces" in before:
        expected["forces"] = before["forces"] @ turn
    if "stress" in before:
        expected["stress"] = turn.T @ before["stress"] @ turn
    return {name: float((after[name] - expected[name]).abs().max()) for name in before}


CASES = {
    "perceptron, principal axes": (Perceptron, RANKS, "3D", MOLECULES),
    "perceptron, pair frames": (Perceptron, RANKS, "pair", SYMMETRIC),
    "transformer, pair frames": (Transformer, "scalar", "pair", SYMMETRIC),
    "messages, lattice frames": (Messages, RANKS, "lattice", SLABS),
    "messages, all periodicities": (Messages, RANKS, "lattice", MIXED),
}


@pytest.mark.parametrize("turn", turns())
@pytest.mark.parametrize("case", CASES)
def test_wrapped_models_are_equivariant_and_bare_ones_are_not(case, turn):
    build, outputs, kind, batch = CASES[case]
    model = seeded(build)
    averaged = frame_averaged(model, kind, "all", outputs=outputs).eval()
    assert max(deviations(averaged, batch, turns()[turn]).values()) < 1e-8
    assert min(deviations(model, batch, turns()[turn]).values()) > 1e-3


def test_principal_axes_fail_for_symmetric_molecules():
    averaged = frame_averaged(seeded(Perceptron), "3D", "all", outputs=RANKS).eval()
    assert deviations(averaged, SYMMETRIC, turns()["rotation"])["energy"] > 1e-6


def test_se3_frames_are_exact_under_rotation_only():
    averaged = frame_averaged(seeded(Perceptron), "3D", "se3-all", outputs=RANKS).eval()
    assert max(deviations(averaged, MOLECULES, turns()["rotation"]).values()) < 1e-8
    assert deviations(averaged, MOLECULES, turns()["reflection"])["energy"] > 1e-4


def test_planar_frames_are_exact_about_z_only():
    averaged = frame_averaged(seeded(Perceptron), "2D", "all", outputs=RANKS).eval()
    angle = torch.tensor(0.7, dtype=torch.float64)
    about_z = torch.eye(3, dtype=torch.float64)
    about_z[:2, :2] = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).reshape(2, 2)
    flat = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    before, after = averaged(MOLECULES), averaged(moved(MOLECULES, about_z, shift=flat))
    assert torch.allclose(before["energy"], after["energy"], atol=1e-11)
    assert deviations(averaged, MOLECULES, turns()["rotation"])["energy"] > 1e-3


def near_pairs(pos, batch):
    """[2, n_edges] pairs of atoms of one structure within 6 Å, without the extensions of PyG."""
    apart = torch.cdist(pos, pos) + 100.0 * (batch[:, None] != batch[None]) + 100.0 * torch.eye(len(pos))
    return torch.nonzero(apart < 6.0).T


def schnet(monkeypatch):
    def edges(pos, batch):
        index = near_pairs(pos, batch)
        return index, torch.linalg.vector_norm(pos[index[0]] - pos[index[1]], dim=1)

    return SchNet(hidden_channels=16, num_filters=16, num_interactions=2, interaction_graph=edges)


def dimenet(monkeypatch):
    """DimeNet++ with edges and triplets made by PyTorch: PyG's own functions need pyg-lib and torch-sparse."""

    def triplets(edge_index, num_nodes):
        j, i = edge_index
        kj, ji = torch.nonzero((i[:, None] == j[None]) & (j[:, None] != i[None])).T
        return i, j, i[ji], j[ji], j[kj], kj, ji

    monkeypatch.setattr(dimenet_module, "radius_graph", lambda pos, r, batch, max_num_neighbors: near_pairs(pos, batch))
    monkeypatch.setattr(dimenet_module, "triplets", triplets)
    return DimeNetPlusPlus(16, 1, 2, 8, 8, 16, 3, 4, cutoff=6.0)


@pytest.mark.parametrize("build", [schnet, dimenet])
def test_invariant_models_of_pyg_stay_as_they_are(build, monkeypatch):
    torch.manual_seed(0)
    model = build(monkeypatch).double().eval()
    for parameter in model.parameters():  # DimeNet++ begins with zeros in its last layers
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    bare = model(MOLECULES.z, MOLECULES.pos, MOLECULES.batch)
    assert bare.abs().min() > 1e-3 and bare.std() > 1e-3
    averaged = frame_averaged(model, "3D", "all", call=lambda model, b: model(b.z, b.pos, b.batch)).eval()
    assert torch.allclose(averaged(MOLECULES), bare, atol=1e-9)
    with torch.no_grad():
        assert deviations(averaged, MOLECULES, turns()["rotation"])["energy"] < 1e-9


def test_atoms_and_structures_keep_their_order():
    """Averaged one by one and as a batch."""
    averaged = frame_averaged(seeded(Perceptron), "pair", "all", outputs=RANKS).eval()
    together = averaged(SYMMETRIC)
    alone = [averaged(one) for one in SYMMETRIC.to_data_list()]
    for name in RANKS:
        assert torch.allclose(together[name], torch.cat([one[name] for one in alone]), atol=1e-12)


@pytest.mark.parametrize(("name", "differentiable"), [("C6H6", True), ("CH3CH2OH", True), ("CH3CH2OH", False)])
def test_gradients_go_through_the_frames(name, differentiable):
    averaged = frame_averaged(seeded(Transformer), "pair", "all", differentiable=differentiable).eval()
    data = data_of(molecule(name) if name == "C6H6" else distorted(name))
    data.pos = data.pos.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(averaged(data).sum(), data.pos)
    step, numeric = 1e-5, []
    for axis in range(3):
        ends = []
        for sign in (1, -1):
            changed = data.clone()
            changed.pos = data.pos.detach().clone()
            changed.pos[0, axis] += sign * step
            ends.append(float(averaged(changed).detach().sum()))
        numeric.append((ends[0] - ends[1]) / (2 * step))
    error = float((gradient[0] - torch.tensor(numeric, dtype=torch.float64)).abs().max())
    assert error < 1e-7 if differentiable else error > 1e-4


def test_training_draws_one_frame_and_evaluation_averages():
    averaged = frame_averaged(seeded(Perceptron), "3D", "all", outputs=RANKS)
    averaged.train()
    drawn = torch.stack([averaged(MOLECULES)["energy"] for _ in range(64)])
    assert drawn.std(dim=0).min() > 0
    possible = frame_averaged(averaged.model, "3D", "one", outputs=RANKS).eval()(MOLECULES)["energy"]
    assert bool(torch.isclose(drawn, possible, atol=1e-9).any(dim=0).all())
    averaged.eval()
    assert torch.equal(averaged(MOLECULES)["energy"], averaged(MOLECULES)["energy"])
    torch.manual_seed(1)
    first = averaged.train()(MOLECULES)["energy"]
    torch.manual_seed(1)
    assert torch.equal(first, averaged(MOLECULES)["energy"])


def test_further_vectors_rotate_with_the_structure():
    class Speeds(nn.Module):
        def forward(self, batch):
            return global_add_pool(torch.exp(0.1 * batch.velocity[:, :1] * batch.pos[:, 1:2]), batch.batch)

    turn, change = turns()["rotation"], {}
    for fields in ((), ("velocity",)):
        averaged, energies = frame_averaged(Speeds(), "3D", vector_fields=fields).eval(), []
        for rotation in (torch.eye(3, dtype=torch.float64), turn):
            data = data_of(molecule("CH3CH2OH"))
            data.velocity = data.pos.flip(1) @ rotation
            data.pos = data.pos @ rotation
            energies.append(float(averaged(data)))
        change[fields] = abs(energies[0] - energies[1])
    assert change[("velocity",)] < 1e-11
    assert change[()] > 1e-3


@pytest.mark.parametrize(
    ("kind", "method", "n_frames"), [("3D", "all", 8), ("2D", "se3-all", 2), ("lattice", "pair", 2)]
)
def test_the_transform_has_the_fields_of_upstream(kind, method, n_frames):
    transform = Compose([FrameAveraging(kind, method)])
    data = transform(data_of(SLAB))
    assert len(data.fa_pos) == len(data.fa_cell) == len(data.fa_rot) == n_frames
    centroid = data.pos.mean(dim=0) * torch.tensor([1.0, 1.0, float(kind != "2D")])
    for pos, cell, rotation in zip(data.fa_pos, data.fa_cell, data.fa_rot, strict=True):
        assert rotation.shape == cell.shape == (1, 3, 3)
        assert torch.allclose(pos @ rotation[0].T + centroid, data.pos)
        assert torch.allclose(cell @ rotation[0].T, data.cell)
    assert float(sum(data.fa_weight)) == pytest.approx(1.0)
    batch = Batch.from_data_list([transform(data_of(SLAB)), transform(data_of(SLAB * (2, 1, 1)))])
    assert batch.fa_pos[0].shape == batch.pos.shape and batch.fa_rot[0].shape == (2, 3, 3)


def test_the_stochastic_transform_draws_another_frame_each_time():
    transform = FrameAveraging("3D", generator=torch.Generator().manual_seed(0))
    drawn = {tuple(transform(MOLECULES.to_data_list()[0]).fa_rot[0].sign().flatten().tolist()) for _ in range(40)}
    assert len(drawn) > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "4D"}, "expected one of 3D, 2D, lattice, pair"),
        ({"method": "some"}, "expected one of one, pair, all"),
        ({"outputs": "matrix"}, "expected scalar, vector, tensor"),
    ],
)
def test_wrong_words_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        frame_averaged(Perceptron(), **arguments)


def changed(batch, **fields):
    """A copy of a batch with fields that are set after batching."""
    found = batch.clone()
    found.update(fields)
    return found


def one(**fields):
    data = MOLECULES.to_data_list()[0]
    data.update(fields)
    return data


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (MOLECULES.pos, r"a float64 tensor \[\d+, 3\], expected a Data or Batch"),
        (MOLECULES.to_data_list(), "a list, expected a Data or Batch"),
        (Data(z=MOLECULES.z), "pos is missing"),
        (one(pos=torch.zeros(9, 3, dtype=torch.long)), "pos is a int64 tensor"),
        (one(cell=torch.ones(1, 3)), r"cell is a float32 tensor \[1, 3\], expected a tensor \[1, 3, 3\]"),
        (one(pbc=True), r"pbc is a bool, expected a tensor \[1, 3\]"),
        (Data(z=MOLECULES.z, pos=MOLECULES.pos, batch=MOLECULES.batch), "Batch.from_data_list"),
        (changed(MOLECULES, charge=torch.zeros(3)), "fields charge were added to the batch"),
        (changed(MOLECULES, edge_index=MOLECULES.edge_index[:, 1:]), "fields edge_index .* changed in length"),
    ],
)
def test_data_that_cannot_be_divided_and_rotated_are_refused(given, message):
    averaged = frame_averaged(seeded(Perceptron), "pair", outputs=RANKS).eval()
    with pytest.raises(InputError, match=message):
        averaged(given)


def test_further_vectors_must_be_there_and_be_vectors():
    averaged = frame_averaged(seeded(Perceptron), "pair", outputs=RANKS, vector_fields=("velocity",)).eval()
    with pytest.raises(InputError, match="velocity is missing"):
        averaged(MOLECULES)
    with pytest.raises(InputError, match=r"velocity is a float32 tensor \[9\], expected .* vector_fields"):
        averaged(one(velocity=torch.zeros(9)))


def test_the_transform_is_for_one_structure():
    with pytest.raises(InputError, match="apply it before batching"):
        FrameAveraging("3D")(MOLECULES)


def test_names_of_upstream_mean_the_same():
    for theirs, ours in {"det": "one", "se3-det": "se3-one"}.items():
        found = [FrameAveraging("3D", name)(one()).fa_rot[0] for name in (theirs, ours)]
        assert torch.equal(*found)
    for theirs, ours in {"random": "stochastic", "se3-random": "se3-stochastic"}.items():
        drawn = [
            [FrameAveraging("3D", name, generator=generator)(one()).fa_rot[0] for _ in range(5)]
            for name, generator in ((name, torch.Generator().manual_seed(0)) for name in (theirs, ours))
        ]
        assert torch.equal(torch.cat(drawn[0]), torch.cat(drawn[1]))
    assert str(FrameAveraging("3D", "se3-random")) == "FrameAveraging('3D', 'se3-random')"


def test_conservative_forces_of_schnet_are_those_of_the_bare_model(monkeypatch):
    """Energies and forces by autograd, for a mixed batch of molecules and a periodic slab."""
    model = schnet(monkeypatch).double().eval()
    structures = [*MOLECULES.to_data_list(), SLABS.to_data_list()[0]]

    def energies(model, batch):
        return model(batch.z, batch.pos, batch.batch)[:, 0]

    averaged = frame_averaged(model, "lattice", "all", call=energies).eval()
    found = []
    for one_model in (averaged, partial(energies, model)):
        batch = Batch.from_data_list(structures)
        batch.pos.requires_grad_()
        energy = one_model(batch)
        found.append((energy, -torch.autograd.grad(energy.sum(), batch.pos)[0]))
    assert found[1][1].abs().max() > 1e-3
    assert all(torch.allclose(mine, bare, atol=1e-9) for mine, bare in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("outputs", "returned", "message"),
    [
        ({"energy": "scalar"}, lambda found: found, "a dict with energy, forces, stress, which outputs="),
        ({"energy": "scalar"}, lambda found: found["energy"], "returned a float64 tensor .* which outputs="),
        (None, lambda found: found, "expected outputs={key: rank}"),
        (None, lambda found: found["forces"], "may be vectors; give outputs='vector'"),
        (None, lambda found: tuple(found.values()), "the output is a tuple"),
        ("scalar", lambda found: found["energy"].sum(), r"the output is a float64 tensor \[\]"),
        ("scalar", lambda found: found["energy"].long(), "a int64 tensor"),
        ("vector", lambda found: found["forces"][:, :2], r"expected \[n, ..., 3\] for a vector"),
        ("tensor", lambda found: found["stress"].flatten(1), r"expected \[n, ..., 3, 3\] for a tensor"),
        ("vector", lambda found: found["forces"][1:], "a row per structure or per atom"),
    ],
)
def test_outputs_that_cannot_be_averaged_are_refused(outputs, returned, message):
    averaged = frame_averaged(seeded(Perceptron), outputs=outputs, call=lambda model, batch: returned(model(batch)))
    with pytest.raises(InputError, match=message):
        averaged.eval()(MOLECULES)


def test_three_invariant_numbers_are_averaged_as_such():
    def numbers(model, batch):
        return model(batch)["forces"]

    averaged = frame_averaged(seeded(Perceptron), outputs="scalar", call=numbers).eval()
    turn = turns()["rotation"]
    assert torch.allclose(averaged(MOLECULES), averaged(moved(MOLECULES, turn)), atol=1e-9)
