"""Lists the packages for setuptools; everything else stands in pyproject.toml.

setuptools can find packages by itself, but not below a folder that carries another name than its package,
as `graph/` does for `dovetail.graph`. So the roots are read from pyproject.toml and what lies below them is
found here, and a new subpackage needs no line anywhere. The links to these roots in `dovetail/` are for type
checkers in a clone; they are left out here.
"""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

pyproject = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))
roots: dict[str, str] = pyproject["tool"]["setuptools"]["package-dir"]

_links = [pattern for name in roots if (link := name.partition(".")[2]) for pattern in (link, f"{link}.*")]

setup(
    packages=[
        package
        for name, folder in roots.items()
        for package in [name, *(f"{name}.{sub}" for sub in find_packages(folder, exclude=_links))]
    ]
)
