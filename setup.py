"""Package list and compiled library for setup.cfg.

The models live in `pretrained/<name>/` at the top of the repository, where people look for them, and are installed as
`faenet_calc/pretrained_models/<name>/`. setup.cfg cannot combine `find:` with such a mapping.

The library is plain C without Python headers, so one build serves every Python version. It is optional: where it
cannot be built, faenet-calc runs in PyTorch and is slower.
"""

import sys
import zlib
from pathlib import Path

from setuptools import Extension, find_packages, setup

SOURCES = Path("faenet_calc/network/native")
CHECKSUM = zlib.crc32(b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]"))))
THREADS = ["-fopenmp"] if sys.platform == "linux" else []

library = Extension(
    "faenet_calc.network.native._library",
    sources=[str(SOURCES / f"{name}.c") for name in ("avx512", "avx2", "portable", "dispatch")],
    depends=[
        str(SOURCES / name)
        for name in (
            "fused.c",
            "fused.h",
            "training.c",
            "training.h",
            "orthogonal.c",
            "examine.c",
            "examine.h",
            "components.c",
            "messages.c",
            "subnormals.h",
        )
    ],
    define_macros=[("SOURCES_CHECKSUM", f"{CHECKSUM}u")],
    extra_compile_args=["-O3", "-std=gnu11", "-g0", *THREADS],
    extra_link_args=[*THREADS, "-lm"],
    py_limited_api=True,
    optional=True,
)

setup(
    packages=[*find_packages(include=["faenet_calc", "faenet_calc.*"]), "faenet_calc.pretrained_models"],
    package_dir={"faenet_calc": "faenet_calc", "faenet_calc.pretrained_models": "pretrained"},
    ext_modules=[library],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
