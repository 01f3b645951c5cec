"""Manifests for Kubernetes: what they say, and that they fit the API's schema, of which `kubernetes_schema.json` holds the part used."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import dovetail as dt
from dovetail.distribute.launchers.kubernetes_manifests import FILES, KEYS, METRICS_PORT, PORT, manifests
from dovetail.placer.cluster.load import described_by
from dovetail.runtime.server.local_cluster import reserved_address
from dovetail.runtime.transport.keys import write_keys
from dovetail.runtime.transport.zmq_sockets import new_key_pair
from dovetail.tools.cli import app

SCHEMA = json.loads((Path(__file__).parent / "kubernetes_schema.json").read_text(encoding="utf-8"))
CLUSTER = {
    "jobs": {"ps": 2, "worker": 3},
    "resources": {"ps": {"memory": "2 GiB"}, "worker": {"cpus": 4, "gpus": 1, "memory": "8 GiB"}},
}


def by_name(**more: Any) -> dict[tuple[str, str], Any]:
    made = manifests(CLUSTER, "registry/dovetail:1", **more)
    return {(m["kind"], m["metadata"]["name"]): m for m in made}


def misfits(value: Any, schema: Any, where: str = "$") -> list[str]:
    """Where a value does not fit a JSON schema of the kind that is recorded."""
    if "$ref" in schema:
        return misfits(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], where)
    if "anyOf" in schema:
        tried = [misfits(value, s, where) for s in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "null": type(None)}
    kind = kinds.get(schema.get("type", ""))
    if kind is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        return [f"{where}: {value!r} is no {schema['type']}"]
    found: list[str] = []
    if isinstance(value, list):
        for i, item in enumerate(value):
            found += misfits(item, schema.get("items", {}), f"{where}[{i}]")
    elif isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        found += [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, item in value.items():
            if name not in known and others is False:
                found.append(f"{where}: no field {name}")
            else:
                found += misfits(item, known.get(name, others), f"{where}.{name}")
    return found


@pytest.mark.parametrize("key", [None, "secret: 12"])
def test_manifests_fit_the_schema(key: str | None) -> None:
    for manifest in manifests(CLUSTER, "dovetail:1", key=key):
        assert manifest["apiVersion"] == SCHEMA["versions"][manifest["kind"]]
        assert misfits(manifest, {"$ref": f"#/$defs/V1{manifest['kind']}"}) == []


def test_a_manifest_that_does_not_fit_is_found() -> None:
    manifest = by_name()["StatefulSet", "dovetail-worker"]
    manifest["spec"]["replicas"] = "3"
    manifest["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    del manifest["spec"]["selector"]
    found = misfits(manifest, {"$ref": "#/$defs/V1StatefulSet"})
    assert [re.sub(r"^\$\.spec", "", f) for f in found] == [
        ": selector is missing", ".replicas: '3' is no integer", ".template.spec.containers[0]: no field imagePolicy",
    ]  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("kubernetes") is None, reason="the package kubernetes is not installed")
def test_manifests_are_what_kubernetes_own_package_takes() -> None:
    from kubernetes import client  # type: ignore[import-not-found,import-untyped,unused-ignore]

    for manifest in manifests(CLUSTER, "dovetail:1", key="secret: 12"):
        kind = getattr(client, f"V1{manifest['kind']}")
        assert kind.from_dict(manifest).metadata.name == manifest["metadata"]["name"]


def test_each_task_has_the_address_that_its_pod_has() -> None:
    made = by_name()
    jobs = json.loads(made["ConfigMap", "dovetail"]["data"]["cluster.json"])["jobs"]
    for job, addresses in jobs.items():
        service, pods = made["Service", f"dovetail-{job}"], made["StatefulSet", f"dovetail-{job}"]
        assert pods["spec"]["serviceName"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
        port = service["spec"]["ports"][0]["port"]
        names = [f"{pods['metadata']['name']}-{i}" for i in range(pods["spec"]["replicas"])]
        assert addresses == [f"{name}.{service['metadata']['name']}:{port}" for name in names]
        labels = pods["spec"]["template"]["metadata"]["labels"]
        budget = made["PodDisruptionBudget", f"dovetail-{job}"]["spec"]["selector"]["matchLabels"]
        for chosen in (pods["spec"]["selector"]["matchLabels"], service["spec"]["selector"], budget):
            assert chosen.items() <= labels.items() and chosen["app.kubernetes.io/component"] == job


def test_a_pod_takes_what_the_cluster_file_says() -> None:
    made = by_name()
    (worker,) = made["StatefulSet", "dovetail-worker"]["spec"]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"] == {"cpu": "4", "memory": str(8 << 30), "nvidia.com/gpu": "1"}
    assert worker["resources"]["requests"] == worker["resources"]["limits"]
    (ps,) = made["StatefulSet", "dovetail-ps"]["spec"]["template"]["spec"]["containers"]
    assert ps["resources"]["limits"] == {"memory": str(2 << 30)}


def test_tasks_know_that_variables_are_kept_twice() -> None:
    kept = {"name": "DOVETAIL_PS_REPLICAS", "value": "2"}
    for replicas in (1, 2):
        for manifest in manifests({"jobs": {"ps": 2}, "ps_replicas": replicas}, "dovetail:1"):
            assert misfits(manifest, {"$ref": f"#/$defs/V1{manifest['kind']}"}) == []
            if manifest["kind"] == "StatefulSet":
                assert (kept in manifest["spec"]["template"]["spec"]["containers"][0]["env"]) == (replicas == 2)


def test_probes_ask_the_port_of_the_metrics() -> None:
    (server,) = by_name()["StatefulSet", "dovetail-ps"]["spec"]["template"]["spec"]["containers"]
    (port,) = [p["containerPort"] for p in server["ports"] if p["name"] == server["livenessProbe"]["httpGet"]["port"]]
    assert f"0.0.0.0:{port}" in server["args"]
    assert [server[p]["httpGet"]["path"] for p in ("livenessProbe", "readinessProbe")] == ["/live", "/ready"]


def test_the_key_is_a_secret_of_its_own() -> None:
    made = by_name(key="secret: 12")
    assert made["Secret", "dovetail"]["stringData"] == {"own.key": "secret: 12"}
    assert "secret: 12" not in json.dumps([m for (kind, _), m in made.items() if kind != "Secret"])
    spec = made["StatefulSet", "dovetail-ps"]["spec"]["template"]["spec"]
    assert {v["name"] for v in spec["volumes"]} == {"cluster", "secret", "keys"}
    assert "--insecure" not in spec["containers"][0]["args"]
    assert "--insecure" in by_name()["StatefulSet", "dovetail-ps"]["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ({"jobs": {"ps": ["a:1"]}}, "must have a number of tasks"),
        ({"jobs": {"PS": 1}}, "'PS' is not a valid name"),
        ({"jobs": {"ps": 1}, "resources": {"worker": {"cpus": 1}}}, "not in the cluster: worker"),
        ({"jobs": {"ps": 1}, "resources": {"ps": {"cpu": 1}}}, "known are: cpus, gpus, memory"),
        ({"jobs": {"ps": 1}, "resources": {"ps": {"memory": "2 parsecs"}}}, "memory is a number or a text"),
    ],
)
def test_malformed_clusters(described: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        manifests(described, "dovetail:1")


def test_the_command_makes_a_key_once(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(CLUSTER))
    call = ["k8s", "manifests", str(file), "--image", "dovetail:1", "--keys", str(tmp_path / "keys")]
    first, second = (CliRunner().invoke(app, call) for _ in range(2))
    assert first.exit_code == 0 and first.output == second.output
    key = (tmp_path / "keys" / "own.key").read_text()
    expected = manifests(described_by(str(file)), "dovetail:1", key=key)
    assert list(yaml.safe_load_all(first.output)) == expected
    refused = CliRunner().invoke(app, call[:-2])
    assert refused.exit_code == 2 and "--keys" in refused.output


@pytest.mark.slow
def test_a_container_serves(tmp_path: Path) -> None:
    """The container's arguments, with this machine's address and files in the place of the pod's."""
    write_keys(tmp_path, "cluster", new_key_pair())
    made = manifests({"jobs": {"worker": 1}}, "dovetail:1", key=(tmp_path / "own.key").read_text())
    with reserved_address("127.0.0.1") as address, reserved_address("127.0.0.1") as metrics:
        here = {
            f"{FILES}/cluster.json": str(tmp_path / "cluster.json"), KEYS: str(tmp_path), "$(TASK_INDEX)": "0",
            f"$(POD_IP):{PORT}": address, f"0.0.0.0:{METRICS_PORT}": metrics,
        }  # fmt: skip
    (tmp_path / "cluster.json").write_text(made[0]["data"]["cluster.json"])
    (container,) = next(m for m in made if m["kind"] == "StatefulSet")["spec"]["template"]["spec"]["containers"]
    at = here[f"0.0.0.0:{METRICS_PORT}"]
    with subprocess.Popen([sys.executable, "-m", "dovetail", *(here.get(a, a) for a in container["args"])]) as task:
        try:
            deadline = time.monotonic() + 50
            while True:
                try:
                    with urllib.request.urlopen(
                        f"http://{at}{container['readinessProbe']['httpGet']['path']}"
                    ) as reply:
                        assert reply.status == 200
                    break
                except urllib.error.URLError:
                    assert time.monotonic() < deadline and task.poll() is None
                    time.sleep(0.2)
            config = dt.ConfigProto(keys=str(tmp_path))
            with dt.Graph().as_default(), dt.Session(f"zmq://{here[f'$(POD_IP):{PORT}']}", config=config) as session:
                assert session.run(dt.constant(2.0) * 3.0) == 6.0
        finally:
            task.terminate()
