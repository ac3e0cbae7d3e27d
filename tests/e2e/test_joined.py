"""What `kvrelay serve` finds in a Ray that others use, and what it leaves there; no engines."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys

import pytest

from kvrelay.cluster import preflight
from kvrelay.cluster.processes import MARKER, end_processes
from kvrelay.cluster.session import make_temp_dir

# Somebody's driver: a Serve application, and us as its guest.
DRIVER = """
import json, logging, sys, ray
from ray import serve
from kvrelay.cluster import joined
from kvrelay.cluster.config import load_config
from kvrelay.cluster.errors import LifecycleError

port, other_port, temp_dir = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ray.init(
    address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
    logging_level=logging.ERROR, _temp_dir=temp_dir, object_store_memory=2**27,
)

def enter(port, **agent):
    agents = [{"name": "a", "model": "demo", **agent}]
    content = {"models": {"demo": {"source": "demo"}}, "agents": agents, "http": {"port": port}}
    try:
        return joined.enter(load_config(content))
    except LifecycleError as error:
        return error.message

@serve.deployment(ray_actor_options={"num_cpus": 0})
class Other:
    def __call__(self):
        return "here"

told = {"alone": str(enter(port)), "no node": enter(port, node="far")}
serve.start(http_options={"port": other_port})
serve.run(Other.bind(), name="other", route_prefix="/other")
told["other port"] = enter(port)
guest = enter(other_port)
told["beside"] = str(guest)
for step in guest.leaving():
    step()
told["left"] = sorted(serve.status().applications)
serve.run(Other.bind(), name="kvrelay", route_prefix="/kvrelay")
told["same name"] = enter(other_port)
print(json.dumps(told))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    return preflight.free_port(), preflight.free_port()


@pytest.fixture(scope="module")
def told(ports: tuple[int, int]) -> dict[str, object]:
    """What the driver has found."""
    mark, temp_dir = secrets.token_hex(8), make_temp_dir()
    environment = {**os.environ, MARKER: mark, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", DRIVER, *map(str, ports), temp_dir]
    try:
        done = subprocess.run(
            command, env=environment, cwd=temp_dir, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return answer
    finally:
        end_processes(mark)
        shutil.rmtree(temp_dir, ignore_errors=True)


def test_serve_is_ours_if_nobody_has_started_it(told: dict[str, object]) -> None:
    assert told["alone"] == "Guest(serve_ran=False)"
    assert told["beside"] == "Guest(serve_ran=True)"


def test_a_node_without_its_label_is_refused(told: dict[str, object]) -> None:
    assert "agents[0].node 'far': no Ray node carries this label" in str(told["no node"])


def test_serve_listens_elsewhere(told: dict[str, object], ports: tuple[int, int]) -> None:
    assert f"listens on 127.0.0.1:{ports[1]}, not on 127.0.0.1:{ports[0]}" in str(
        told["other port"]
    )


def test_another_application_of_our_name_is_left_alone(told: dict[str, object]) -> None:
    assert "already serves an application named 'kvrelay'" in str(told["same name"])


def test_leaving_touches_nobody_else(told: dict[str, object]) -> None:
    assert told["left"] == ["other"]
