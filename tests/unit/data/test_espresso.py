"""Quantum ESPRESSO outputs as training data, by their unit conversions."""

import pytest
from ase.units import create_units

from faenet_calc.data.dataset import open_dataset

RY, BOHR = (create_units("2006")[name] for name in ("Ry", "Bohr"))  # the set that ASE's reader converts with

PWO = """     Program PWSCF v.7.2 starts on  1Jan2024 at 10: 0: 0

     lattice parameter (alat)  =       7.5589  a.u.
     number of atoms/cell      =            2
     number of atomic types    =            1

     celldm(1)=   7.558900  celldm(2)=   0.000000  celldm(3)=   0.000000

     crystal axes: (cart. coord. in units of alat)
               a(1) = (   1.000000   0.000000   0.000000 )
               a(2) = (   0.000000   1.000000   0.000000 )
               a(3) = (   0.000000   0.000000   1.000000 )

   Cartesian axes

     site n.     atom                  positions (alat units)
         1           Cu  tau(   1) = (   0.0000000   0.0000000   0.0000000  )
         2           Cu  tau(   2) = (   0.5000000   0.0000000   0.5000000  )

!    total energy              =    -426.12345678 Ry

     Forces acting on atoms (cartesian axes, Ry/au):

     atom    1 type  1   force =     0.01000000    0.00000000   -0.02000000
     atom    2 type  1   force =    -0.01000000    0.00000000    0.02000000

     total   stress  (Ry/bohr**3)                   (kbar)     P=       14.71
   0.00010000   0.00000000   0.00000000           14.71        0.00        0.00
   0.00000000   0.00010000   0.00000000            0.00       14.71        0.00
   0.00000000   0.00000000   0.00010000            0.00        0.00       14.71

   JOB DONE.
"""


def test_energy_forces_and_stress_of_an_espresso_output(tmp_path):
    for name in ("run1", "run2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "espresso.pwo").write_text(PWO)
    dataset = open_dataset(tmp_path, cutoff=5.0, cache_dir=tmp_path / ".cache")
    assert len(dataset) == 2
    item = dataset[1]
    assert item.energy == pytest.approx(-426.12345678 * RY)
    assert item.forces[0].tolist() == pytest.approx([0.01 * RY / BOHR, 0.0, -0.02 * RY / BOHR])
    assert item.stress is not None  # compression is positive pressure there, negative stress here
    assert float(item.stress.flatten()[0]) == pytest.approx(-1e-4 * RY / BOHR**3)
    assert float(item.graph.cell[0, 0, 0]) == pytest.approx(7.5589 * BOHR, rel=1e-5)
