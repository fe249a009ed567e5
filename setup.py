"""Package list for setup.cfg: the packages found below faenet_calc, and the shipped models.

The models live in `pretrained/<name>/` at the top of the repository, where people look for them, and are installed as
`faenet_calc/pretrained_models/<name>/`. setup.cfg cannot combine `find:` with such a mapping.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["faenet_calc", "faenet_calc.*"]), "faenet_calc.pretrained_models"],
    package_dir={"faenet_calc": "faenet_calc", "faenet_calc.pretrained_models": "pretrained"},
)
