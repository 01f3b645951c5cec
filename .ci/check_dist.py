"""Installs the wheel in dist/ into an empty environment of each Python that is found among those that are supported, and tries it there.

    python .ci/check_dist.py [VERSION...]

A Python is looked for as `python3.12` on the path, and among those of pyenv. The exit status is 1 when a check fails or no Python is found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
SMOKE = """
import numpy as np
import dovetail as dt

@dt.compile(cluster={"ps": 1, "worker": 1})
def step(x):
    with dt.device("/job:ps"):
        w = dt.Variable(dt.ones([3]), name="w")
    with dt.device("/job:worker"):
        return dt.reduce_sum(x * w)

x = np.arange(6, dtype=np.float32).reshape(2, 3)
devices = sorted(step.plan(x).partitions)
with step:
    assert step(x) == 15.0
    print(len(step.session.list_devices()), "processes;", dt.__version__, "from", dt.__file__)
"""


def find(version: str) -> str | None:
    """The interpreter of a version."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for command in (shutil.which(f"python{version}"), *map(str, installed)):
        if command and subprocess.run([command, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return command
    return None


def try_in(python: str, wheel: Path) -> None:
    """Install the wheel with its dependencies into a new environment, import it and run the smoke program."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        own = Path(folder, "bin", "python")
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        (program := Path(folder, "smoke.py")).write_text(SMOKE, encoding="utf-8")
        for command in (
            [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel.resolve()],
            [own, "-m", "pip", "check"],
            [Path(folder, "bin", "dovetail"), "--version"],
            [Path(folder, "bin", "dovetail"), "ops", "softmax"],
            [own, "-W", "error::SyntaxWarning", program],
        ):
            subprocess.run([str(part) for part in command], cwd=folder, env=environment, check=True)


def main(versions: list[str]) -> None:
    """Check the one wheel in dist/."""
    [wheel] = Path("dist").glob("*.whl")
    stray = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()} - {
        "dovetail",
        f"{wheel.name.split('-py3')[0]}.dist-info",
    }
    if stray:
        raise SystemExit(f"{wheel} holds {', '.join(sorted(stray))}")
    found = {version: find(version) for version in versions or VERSIONS}
    for version, python in found.items():
        print(f"Python {version}: {python or 'not found'}", flush=True)
        if python:
            try_in(python, wheel)
    if not any(found.values()):
        raise SystemExit("No supported Python was found")


if __name__ == "__main__":
    main(sys.argv[1:])
