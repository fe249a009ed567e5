"""Recipes to labelled data: the label factory.

In: a YAML recipe and an ASE calculator. Out: files of structures with energy, forces and stress.
May import ``data``, ``simulate`` and what lies below them.

| module | content |
|---|---|
| recipe | what to generate, read strictly from YAML |
| tasks | the recipe expanded into a fixed, shuffled list of small tasks |
| structures, adsorbates | bulk cells, slabs, adsorption sites, adsorbates |
| sampling | one task to snapshots: relaxations, short MD, rattling, strain, desorption curves |
| labels | a snapshot with energy, raw forces, stress and its origin |
| label_files | the file that labels are appended to |
| factory | runs the tasks, in parallel and resumably |
"""

from faenet_calc.labelling.factory import Progress, generate
from faenet_calc.labelling.recipe import Recipe, load_recipe
from faenet_calc.labelling.tasks import Task, plan

__all__ = ["Progress", "Recipe", "Task", "generate", "load_recipe", "plan"]
