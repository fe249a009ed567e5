"""The label factory: structures generated from a recipe and labelled by any ASE calculator.

In: a YAML recipe. Out: a file of structures with energies, forces, stresses and their origin.
May import ``data``, ``simulate`` and the folders below them.

| module | content |
|---|---|
| recipe | settings, read strictly from YAML |
| calculators | builds the calculators of a recipe: allowed code, digests of loaded models |
| tasks | expands a recipe into a fixed, shuffled list of small tasks |
| structures, adsorbates | bulk cells, slabs, adsorption sites, adsorbates |
| sampling | explores the system of a task: relaxations, short MD, rattling, strain, approach curves |
| labels | labels a snapshot with energy, raw forces, stress and origin |
| label_files | appends labels to a file |
| factory | runs the tasks in parallel and resumes them |
"""

from faenet_calc.labelling.factory import Progress, generate
from faenet_calc.labelling.recipe import Recipe, load_recipe
from faenet_calc.labelling.tasks import Task, plan

__all__ = ["Progress", "Recipe", "Task", "generate", "load_recipe", "plan"]
