"""What `kvrelay status` makes of the pages of Ray's metrics ports."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvrelay.cluster import cli
from kvrelay.cluster.scrape import figures, scrape
from kvrelay.cluster.session import Session

PAGE = """\
# HELP ray_kvrelay_requests_total Requests by how relay ended.
# TYPE ray_kvrelay_requests_total counter
ray_kvrelay_requests_total{model_name="a",engine="0",reason="relayed",WorkerId="1"} 3.0
ray_kvrelay_requests_total{model_name="b",engine="0",reason="relayed",WorkerId="2"} 4.0
ray_kvrelay_requests_total{model_name="b",engine="0",reason="no_source",WorkerId="2"} 5.0
# TYPE ray_kvrelay_fallbacks_total counter
ray_kvrelay_fallbacks_total{model_name="b",engine="0",reason="load_corrupt"} 1.0
# TYPE ray_kvrelay_band_hits_total counter
ray_kvrelay_band_hits_total{model_name="b",engine="0",similarity_band="high"} 7.0
# TYPE ray_kvrelay_transfer_bytes_total counter
ray_kvrelay_transfer_bytes_total{model_name="b",transport="nixl",path="tcp",codec="raw"} 2e+06
# TYPE ray_kvrelay_transfer_latency_seconds histogram
ray_kvrelay_transfer_latency_seconds_bucket{path="tcp",le="+Inf"} 9.0
ray_kvrelay_transfer_latency_seconds_count{path="tcp"} 9.0
# TYPE ray_kvrelay_store_capacity_bytes gauge
ray_kvrelay_store_capacity_bytes{place="arena"} 8e+06
ray_kvrelay_store_capacity_bytes{place="encoded"} 2e+06
# TYPE ray_kvrelay_store_used_bytes gauge
ray_kvrelay_store_used_bytes{place="arena"} 1e+06
# TYPE ray_kvrelay_store_leases gauge
ray_kvrelay_store_leases 6.0
# TYPE ray_kvrelay_store_evictions_total counter
ray_kvrelay_store_evictions_total{place="arena"} 11.0
# TYPE ray_node_cpu_count gauge
ray_node_cpu_count 2.0
"""


@pytest.fixture
def node() -> Iterator[str]:
    """A metrics page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode() if self.path == "/metrics" else b"<html>no metrics")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_figures() -> None:
    found = figures(text_string_to_metric_families(PAGE))
    assert found["requests"] == {"relayed": 7, "no_source": 5}
    assert found["fallbacks"] == {"load_corrupt": 1}
    assert found["band_hits"] == {"high": 7}
    assert found["transfer_bytes"] == {"tcp": 2_000_000}
    assert found["store_capacity_bytes"] == {"arena": 8_000_000, "encoded": 2_000_000}
    assert (found["store_leases"], found["log_dropped"]) == (6, 0)
    assert found["store_evictions"] == {"arena": 11}
    assert found["realised_seconds"] == {}


def test_nodes_together_and_those_that_are_silent(node: str) -> None:
    silent = [f"{node}/other", "http://127.0.0.1:1/metrics"]
    found, told = scrape([f"{node}/metrics", *silent, f"{node}/metrics"])
    assert told == silent
    assert found["requests"]["relayed"] == 14
    assert scrape([])[0]["requests"] == {}


def status(capsys, monkeypatch, *words: str) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["kvrelay", "status", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    text = capsys.readouterr()
    return text.out, text.err


def test_status_shows_them(node: str, tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = psutil.Process()
    silent = "http://127.0.0.1:1/metrics"
    Session(
        id="1",
        pid=process.pid,
        pid_created_s=process.create_time(),
        url="http://127.0.0.1:1/v1",
        agents=("a", "b"),
        ready=True,
        metrics=(f"{node}/metrics", silent),
    ).save()
    out, err = status(capsys, monkeypatch)
    shown = [line.split() for line in out.splitlines()]
    figures_shown = ["12", "7", "1", "2.0", "1.0", "of", "10", "6", "11"]
    assert [str(process.pid), *figures_shown] in shown
    assert silent in "".join(err.split())
    (row,) = json.loads(status(capsys, monkeypatch, "--json")[0])["clusters"]
    assert row["metrics"]["requests"]["relayed"] == 7
    assert row["silent_metrics"] == [silent]
