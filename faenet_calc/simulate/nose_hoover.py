"""ASE's Nosé–Hoover chain, corrected for fixed atoms."""

import numpy as np
from ase import Atoms
from ase.md.nose_hoover_chain import NoseHooverChainNVT, NoseHooverChainThermostat
from numpy.typing import NDArray


class NoseHooverWithFixedAtoms(NoseHooverChainNVT):
    """Nosé–Hoover chain dynamics in which fixed atoms neither move nor count as degrees of freedom.

    ASE's class integrates its own momenta with unconstrained forces, and its thermostat counts three degrees of
    freedom for every atom. Both change the temperature of the free atoms and break the conserved quantity.
    """

    def __init__(self, atoms: Atoms, timestep: float, *, temperature_K: float, tdamp: float) -> None:
        super().__init__(atoms, timestep, temperature_K=temperature_K, tdamp=tdamp)
        self._thermostat = NoseHooverChainThermostat(
            num_atoms_global=atoms.get_number_of_degrees_of_freedom() / 3,
            masses=self.masses,
            temperature_K=temperature_K,
            tdamp=tdamp,
        )

    def _get_forces(self) -> NDArray[np.float64]:
        self._update_atoms()
        return np.asarray(self.atoms.get_forces())
