"""k8s/rayservice.yaml against KubeRay's schema, and against the configuration that it serves.

The schema is not part of this repository. The tests that need it look for ray.io_rayservices.yaml
in $KVRELAY_K8S_SCHEMAS, else in ../shared/k8s-schemas beside the checkout, and skip where it is
absent.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MANIFEST = ROOT / "k8s" / "rayservice.yaml"
DEMO = ROOT / "cluster" / "configs" / "demo.yaml"
SCHEMAS = Path(os.environ.get("KVRELAY_K8S_SCHEMAS") or ROOT.parent / "shared" / "k8s-schemas")
CRD = SCHEMAS / "ray.io_rayservices.yaml"

Json = dict[str, Any]


def manifest() -> Json:
    """The RayService document of the manifest."""
    documents = [d for d in yaml.safe_load_all(MANIFEST.read_text()) if d]
    (service,) = [d for d in documents if d["kind"] == "RayService"]
    return service


def serve_application() -> Json:
    """The one application in serveConfigV2."""
    (application,) = yaml.safe_load(manifest()["spec"]["serveConfigV2"])["applications"]
    return application


@cache
def schema() -> Json:
    """The v1 schema of the CRD as JSON Schema; skips the test where the CRD is absent."""
    if not CRD.is_file():
        pytest.skip(f"no {CRD.name} in {SCHEMAS.name}/ (set KVRELAY_K8S_SCHEMAS)")
    crd = yaml.load(CRD.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
    return strict(version["schema"]["openAPIV3Schema"])


def strict(node: Any) -> Any:
    """Reject unknown fields, which Kubernetes would silently prune: a typo is then an error."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: strict(value) for key, value in node.items()}
    is_object_schema = isinstance(node.get("properties"), dict) and "type" in node
    if is_object_schema and not node.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def errors(document: Json) -> list[str]:
    """What the schema says against the document, as `path: message`."""
    closed = copy.deepcopy(schema())
    # The API server gives metadata its own schema; the CRD only says that it is an object.
    closed["properties"]["metadata"] = {"type": "object"}
    found = jsonschema.Draft202012Validator(closed).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


def containers(document: Json) -> Iterator[tuple[str, Json, Json]]:
    """Every ray container: group name, pod spec, container."""
    cluster = document["spec"]["rayClusterConfig"]
    groups = [("head", cluster["headGroupSpec"])]
    groups += [(group["groupName"], group) for group in cluster["workerGroupSpecs"]]
    for name, group in groups:
        pod = group["template"]["spec"]
        yield name, pod, pod["containers"][0]


def test_the_manifest_fits_the_crd() -> None:
    assert errors(manifest()) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "rayClusterConfg"), {}),
        (("spec", "rayClusterConfig", "headGroupSpec", "template", "spec", "volume"), []),
        (("spec", "rayClusterConfig", "headGroupSpec", "rayStartParams"), {"num-cpus": 0}),
        (("spec", "rayClusterConfig", "workerGroupSpecs"), [{"groupName": "agents"}]),
    ],
    ids=["typo", "typo-in-pod", "number-for-string", "missing"],
)
def test_the_check_finds_a_planted_fault(path: tuple[str, ...], value: Any) -> None:
    document = manifest()
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert errors(document) != []


def test_the_application_is_the_builder() -> None:
    application = serve_application()
    assert application["import_path"] == "kvrelay.cluster.app:build"
    assert application["route_prefix"] == "/"


def test_the_arguments_are_the_demo_config() -> None:
    if not DEMO.is_file():
        pytest.skip("no cluster/configs/demo.yaml")
    assert serve_application()["args"] == yaml.safe_load(DEMO.read_text())


def test_shared_memory_holds_arena_and_object_store() -> None:
    """The arena and Ray's object store live in /dev/shm, 64 MB in a container unless mounted."""
    for name, pod, container in containers(manifest()):
        (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
        (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
        assert volume["emptyDir"]["medium"] == "Memory", name
        assert volume["emptyDir"]["sizeLimit"], name


def test_ports_images_and_versions_agree() -> None:
    document = manifest()
    found = list(containers(document))
    assert len({container["image"] for _, _, container in found}) == 1
    assert document["spec"]["rayClusterConfig"]["rayVersion"] == "2.60.0"
    head = found[0][2]
    ports = {port["name"]: port["containerPort"] for port in head["ports"]}
    assert ports == {
        "gcs-server": 6379, "dashboard": 8265, "client": 10001, "serve": 8000, "metrics": 8080,
    }  # fmt: skip
    for name, _, container in found:
        assert container["resources"]["limits"]["memory"], name
        assert container["resources"]["requests"]["cpu"], name
