"""`kvrelay predict` against a server on loopback with a planted prefill and a clock of its own."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from planted import LAW, LLAMA, TRUE

from kvrelay.bench.audit.analysis.break_even import law_row
from kvrelay.bench.audit.predict import committed, endpoint, engine_probe
from kvrelay.bench.audit.predict.committed import load_audit
from kvrelay.bench.audit.predict.endpoint import Endpoint
from kvrelay.bench.audit.predict.engine_fit import fit_engine
from kvrelay.bench.audit.predict.engine_probe import Sample, measure
from kvrelay.bench.errors import BenchError
from kvrelay.cluster import cli
from kvrelay.cluster.errors import ConfigError
from kvrelay.policies.prefill import PrefillCost


@dataclass
class Server:
    """What the handler below does, and what it was asked."""

    cost: PrefillCost = TRUE
    paths: tuple[str, ...] = ("/v1/completions", "/v1/chat/completions")
    card: dict[str, Any] = field(default_factory=lambda: {"id": "m", "max_model_len": 8192})
    others: tuple[str, ...] = ()
    template: int = 0  # tokens in front of every chat, which are cached
    counts: bool = True
    key: str | None = None
    context: int = 8192
    now_s: float = 0.0
    prompts: list[str] = field(default_factory=list)
    url: str = ""

    def clock_s(self) -> float:
        return self.now_s

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """A status and what is sent, after the time that it takes."""
        if path not in self.paths:
            return 404, json.dumps({"detail": "Not Found"})
        chat = path.endswith("chat/completions")
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        cached = self.template if chat else 0
        own = len(prompt.split())
        if own + cached > self.context:
            return 400, json.dumps({"error": {"message": "too many\ntokens"}})
        self.prompts.append(prompt)
        squares = (cached + own) ** 2 - cached**2
        cost = self.cost
        self.now_s += cost.fixed_s + cost.per_token_s * own + cost.per_token_squared_s * squares
        events: list[dict[str, Any]] = []
        if chat:
            events.append({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            events.append({"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]})
        else:
            events.append({"choices": [{"text": "x", "finish_reason": "length"}]})
        if self.counts:
            details = {"cached_tokens": cached} if cached else None
            usage = {"prompt_tokens": cached + own, "prompt_tokens_details": details}
            events.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return 200, "".join([": hello\n\n", *lines, "data: [DONE]\n\n"])


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if state.key and self.headers.get("Authorization") != f"Bearer {state.key}":
                self._send(401, json.dumps({"error": {"message": "who are you?"}}))
                return
            cards = [state.card, *({"id": name} for name in state.others)]
            self._send(200, json.dumps({"object": "list", "data": cards}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(*state.answer(self.path, body))

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}/v1"
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def open_endpoint(server: Server) -> Iterator[Any]:
    """Makes endpoints of the server that are closed in the end."""
    made: list[Endpoint] = []

    def make(**options: Any) -> Endpoint:
        made.append(Endpoint(server.url, clock_s=server.clock_s, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def probe(server: Server, made: Endpoint, budget_s: float = 60.0, **options: Any) -> list[Sample]:
    return measure(made, budget_s, clock_s=server.clock_s, **options)


# The probe


def test_the_probe_finds_the_planted_law(server: Server, open_endpoint: Any) -> None:
    fit = fit_engine(probe(server, open_endpoint()))
    assert fit.cost.fixed_s == pytest.approx(TRUE.fixed_s, rel=1e-6)
    assert fit.cost.per_token_s == pytest.approx(TRUE.per_token_s, rel=1e-6)
    assert fit.cost.per_token_squared_s == pytest.approx(TRUE.per_token_squared_s, rel=1e-6)
    assert fit.off < 1e-9
    assert fit.tokens[0] == 128 and 7000 < fit.tokens[1] < 8192


def test_no_prompt_begins_like_another(server: Server, open_endpoint: Any) -> None:
    probe(server, open_endpoint())
    assert len({prompt.split()[0] for prompt in server.prompts}) == len(server.prompts) > 20


def test_the_probe_keeps_to_its_time_and_tells_it(server: Server, open_endpoint: Any) -> None:
    server.cost = PrefillCost(0.1, 1e-3, 1e-7)
    told: list[float] = []
    samples = probe(server, open_endpoint(), 20.0, tell=told.append)
    assert server.now_s <= 20.0
    assert sum(told) == pytest.approx(20.0)
    assert len({sample.rung for sample in samples}) >= 3
    assert max(sample.tokens for sample in samples) <= 2048  # a longer one would take it all


def test_a_chat_is_what_it_is_without_its_template(server: Server, open_endpoint: Any) -> None:
    server.paths, server.template = ("/v1/chat/completions",), 40
    fit = fit_engine(probe(server, open_endpoint()))
    assert fit.cost.per_token_s == pytest.approx(TRUE.per_token_s, rel=1e-6)
    assert fit.cost.per_token_squared_s == pytest.approx(TRUE.per_token_squared_s, rel=1e-6)


def test_a_context_that_nobody_told_ends_the_ladder(server: Server, open_endpoint: Any) -> None:
    server.card, server.context = {"id": "m"}, 1500
    samples = probe(server, open_endpoint())
    assert max(sample.tokens for sample in samples) == 1024


def test_too_slow_an_engine_is_said_to_be(server: Server, open_endpoint: Any) -> None:
    server.cost = PrefillCost(5.0, 0.05, 0.0)
    with pytest.raises(BenchError, match="give more --seconds"):
        probe(server, open_endpoint(), 20.0)


def test_a_server_that_does_not_count(server: Server, open_endpoint: Any) -> None:
    server.counts = False
    with pytest.raises(BenchError, match=r"stream_options\.include_usage"):
        open_endpoint().first_token("a b c")


def test_a_refusal_is_told_in_one_line(server: Server, open_endpoint: Any) -> None:
    with pytest.raises(BenchError, match=r"refuses a prompt \(400: too many tokens\)"):
        open_endpoint().first_token("a " * 9000)


def test_neither_completions_nor_chat(server: Server, open_endpoint: Any) -> None:
    server.paths = ()
    with pytest.raises(BenchError, match="has neither completions nor chat/completions"):
        open_endpoint().first_token("a b c")


def test_which_model(server: Server, open_endpoint: Any) -> None:
    server.card["root"] = "org/name"
    made = open_endpoint()
    assert (made.model, made.root, made.max_tokens) == ("m", "org/name", 8192)
    server.others = ("n",)
    with pytest.raises(ConfigError, match=r"several models or none \(m, n\); give --model"):
        open_endpoint()
    assert open_endpoint(model="n").max_tokens is None
    with pytest.raises(ConfigError, match=r"--model x: .* has m, n"):
        open_endpoint(model="x")


def test_a_key(server: Server, open_endpoint: Any) -> None:
    server.key = "secret"
    with pytest.raises(ConfigError, match=r"who are you.* OPENAI_API_KEY"):
        open_endpoint()
    assert open_endpoint(api_key="secret").model == "m"


# The committed analysis


def analysis_file(folder: Path, **changes: Any) -> Path:
    rows = [law_row("busy", LAW, 1), law_row("idle", LAW, 1)]
    content = {"meta": {"rows": 1234}, "break_even": {"laws": rows}, **changes}
    path = folder / "analysis.json"
    path.write_text(json.dumps(content))
    return path


def test_an_analysis_is_read(tmp_path: Path) -> None:
    audit = load_audit(analysis_file(tmp_path))
    assert audit.laws == {"busy": LAW, "idle": LAW}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"break_even": {}}, "not the analysis.json of an audit"),
        ({"break_even": {"laws": [{"load": "idle", "fitted": True}]}}, "no law"),
        ({"break_even": {"laws": []}}, "no pairs of relay and recompute"),
        (
            {"break_even": {"laws": [{"load": "idle", "fitted": False, "words": "no law: 2"}]}},
            "no law: 2; use an audit with more lengths",
        ),
    ],
)
def test_an_analysis_without_a_law(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_audit(analysis_file(tmp_path, **changes))


def test_no_analysis_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*kvrelay audit analyze"):
        load_audit(tmp_path / "none.json")
    monkeypatch.setattr(committed, "COMMITTED", tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"name its analysis.json with --analysis"):
        load_audit()


def doctors(**changes: Any) -> str:
    link = {
        "source": "a" * 56,
        "reader": "b" * 56,
        "transport": "nixl",
        "path": "tcp/eth0",
        "latency_s": 0.001,
        "gb_per_s": 1.25,
        "failure": "",
    }
    return json.dumps({"nodes": {}, "links": [{**link, **changes}], "findings": []})


# The command


@pytest.fixture
def command(server: Server, tmp_path: Path, capsys: Any, monkeypatch: Any) -> Any:
    """Runs `kvrelay predict` with the server's clock; exit status, output, errors."""
    monkeypatch.setattr(endpoint, "Endpoint", partial(Endpoint, clock_s=server.clock_s))
    monkeypatch.setattr(engine_probe, "measure", partial(measure, clock_s=server.clock_s))
    point = EntryPoint("predict", "kvrelay.bench.audit.predict.command:predict", "kvrelay.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [point])
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    analysis = str(analysis_file(tmp_path))

    def run(*words: str, analysis: str = analysis) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvrelay", "predict", *words, "--analysis", analysis])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        text = capsys.readouterr()
        return int(caught.value.code or 0), text.out, text.err

    return run


def test_the_command_for_programs(server: Server, command: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    server.card["root"] = str(tmp_path)
    code, out, err = command(server.url, "--link-gbit", "25", "--rtt-ms", "0.1", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["engine"]["per_token_s"] == pytest.approx(TRUE.per_token_s, rel=1e-6)
    assert found["kv"]["bytes_per_token"] == 131_072
    assert [row["load"] for row in found["rows"]] == ["busy", "idle"]
    assert all(row["pays"] == "from" for row in found["rows"])
    assert found["engine"]["timed"][0]["tokens"] == 128
    assert "timing prompts of m: 100 %" in err


def test_the_command_for_people(server: Server, command: Any) -> None:
    code, out, _ = command(server.url, "--kv-bytes-per-token", "131072")
    assert code == 0
    assert "prefill of m: 20.0 ms + 100.0 us a token + 5.00 ns a token squared" in out
    assert "131,072 bytes a token (as given)" in out
    for rate in ("1 Gbit/s", "10 Gbit/s", "25 Gbit/s", "100 Gbit/s", "200 Gbit/s"):
        assert f"{rate}, idle: relay" in out
    assert "Extrapolated, so a guess and no measurement:" in out
    assert "ms recomputed, " in out
    assert "No link was given" in out


def test_links_that_doctor_measured(server: Server, command: Any, tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(doctors())
    words = ("--links", str(path), "--kv-bytes-per-token", "50000")
    code, out, _ = command(server.url, *words)
    assert code == 0
    assert "aaaaaaaa to bbbbbbbb (nixl, tcp/eth0), idle: relay pays from" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--link-gbit", "0"), "--link-gbit 0: give"),
        (("--links", "none.json"), "--links none.json"),
        (("--links", "none.json", "--rtt-ms", "1"), "leave out --link-gbit, --rtt-ms"),
        (("--kv-bytes-per-token", "0"), "--kv-bytes-per-token 0: give bytes"),
        ((), "does not say which model that is; give --config"),
        (("--config", "./none"), "model ./none: no such file"),
        (("--model", "x"), "--model x"),
        (("--seconds", "none"), "--seconds"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    server: Server, command: Any, words: tuple[str, ...], said: str
) -> None:
    code, _, err = command(server.url, *words)
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert server.prompts == []  # nothing was probed for it


def test_nobody_there(command: Any, server: Server) -> None:
    code, _, err = command("http://127.0.0.1:9/v1", "--kv-bytes-per-token", "1000")
    assert code == 1
    assert "is the engine up?" in err
    code, _, err = command("127.0.0.1:8000", "--kv-bytes-per-token", "1000")
    assert code == 2
    assert "give a URL such as" in err


def test_help_teaches(command: Any, server: Server) -> None:
    code, out, _ = command("--help")
    assert code == 0
    text = " ".join(out.split())
    assert "kvrelay predict [OPTIONS]" in text
    assert "kvrelay doctor --json | kvrelay predict" in text
