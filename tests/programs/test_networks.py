"""A cluster over real addresses: every task in a network of its own, all with keys. It trains the demo; outsiders get nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "networks.py"


def why_not() -> str:
    """Why this machine cannot have networks of its own for a test; nothing if it can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    tried = "ip link add test0 type bridge && unshare --net true"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", "sh", "-c", tried], capture_output=True, text=True, check=False
    )
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else ""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_machines_with_keys_train_and_outsiders_get_nothing(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    reason = why_not()
    if reason:
        pytest.skip(reason)
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    logs = found["logs"]
    assert found["steps"] >= 300, logs
    losses = [
        report["loss"]
        for line in logs["worker-0"].splitlines()
        if '"Progress"' in line
        for report in [json.loads(line)]
    ]
    assert losses[-1] < losses[0] / 2
    assert found["nobody"].startswith("PermissionDeniedError: The server at 10.77.0.21:2222 lets in only whom it knows")
    assert found["stranger"].startswith(
        "PermissionDeniedError: The server at 10.77.0.21:2222 does not let in 'stranger'"
    )
    assert found["revoked"] in ("UnavailableError", "PermissionDeniedError")
    assert "refused a connection from" in logs["worker-0"]
    assert "is not allowed: `dovetail keys allow` allows it" in logs["worker-0"]
    assert "revoked: alice" in logs["ps-0"]
