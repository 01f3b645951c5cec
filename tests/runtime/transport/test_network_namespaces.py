"""A cluster over network namespaces with keys: what must hold there is said, and done, in `namespaces.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "namespaces.py"
ENTER = ("unshare", "--map-root-user", "--net")
TOOLS = ("unshare", "nsenter", "ip", "tc")


def why_not() -> str:
    """What keeps this process from making networks; empty: nothing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} (util-linux, iproute2) not installed"
    try_out = "ip link add name bridge type bridge && ip link add name veth-a type veth peer name veth-b && exec unshare --net true"
    tried = subprocess.run([*ENTER, "sh", "-c", try_out], capture_output=True, text=True, check=False, timeout=60)
    return "" if tried.returncode == 0 else f"networks cannot be made here: {tried.stderr.strip()}"


@pytest.mark.slow
def test_machines_of_their_own_train_with_keys_let_nobody_in_and_survive_a_cut(tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    done = subprocess.run(
        [*ENTER, sys.executable, str(SCRIPT), str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("all holds\n"), done.stdout
