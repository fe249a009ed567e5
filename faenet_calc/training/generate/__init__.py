"""The label factory: recipe → tasks → structures → labels by any ASE calculator → file (L3, learning side).

recipe.py      what to make, read strictly from YAML
tasks.py       the recipe spelled out as a fixed, shuffled list of small tasks
structures.py  bulk cells, slabs, adsorption sites, adsorbates
sampling.py    one task → snapshots: relaxations, short MD, rattling, strain, desorption curves
labels.py      a snapshot with energy, raw forces, stress and its origin
label_files.py the file that labels are appended to
factory.py     runs the tasks, in parallel and resumably
"""

from faenet_calc.training.generate.factory import Progress, generate
from faenet_calc.training.generate.recipe import Recipe, load_recipe
from faenet_calc.training.generate.tasks import Task, plan

__all__ = ["Progress", "Recipe", "Task", "generate", "load_recipe", "plan"]
