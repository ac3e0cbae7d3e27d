"""`kvrelay predict`: whether relay would pay on an engine of one's own, from a short probe."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvrelay.cluster.errors import ConfigError

if TYPE_CHECKING:
    from kvrelay.bench.audit.predict.endpoint import Endpoint
    from kvrelay.bench.audit.predict.engine_fit import EngineFit
    from kvrelay.bench.audit.predict.kv_size import KvSize
    from kvrelay.bench.audit.predict.links import Wire


def predict(
    *,
    url: Annotated[
        str, typer.Argument(help="base URL of its OpenAI API, such as http://127.0.0.1:8000/v1")
    ],
    model: Annotated[
        str | None, typer.Option(help="as the server calls it; default: the only one it has")
    ] = None,
    link_gbit: Annotated[
        float | None, typer.Option(help="of the link between engines: what a TCP stream gets")
    ] = None,
    rtt_ms: Annotated[float, typer.Option(help="of that link: what `ping` shows")] = 0.0,
    links: Annotated[
        str | None, typer.Option(help="file with what `kvrelay doctor --json` printed; - reads it")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="the model's config.json, folder or Hugging Face id; default: it says"),
    ] = None,
    kv_bytes_per_token: Annotated[
        float | None, typer.Option(help="instead of what the model's configuration says")
    ] = None,
    analysis: Annotated[
        Path | None, typer.Option(help="analysis.json of an audit; default: the committed one")
    ] = None,
    seconds: Annotated[float, typer.Option(help="of probing, at most", min=1.0)] = 50.0,
    longest: Annotated[int, typer.Option(help="no longer prompts, in tokens", min=512)] = 8192,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="if the server wants one")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Whether relay would pay on your engine, model and link, and from which length on.

    Needs no cluster: any server with OpenAI's API will do. A minute of prompts of several lengths
    tells what prefill costs there. With the model's KV per token and the link's speed that
    gives its place on the map of kvrelay's own audit: seconds on the wire over seconds of
    prefill, and a fixed cost in tokens. What nobody has measured is named as such.

    Probe an idle engine: other requests would count as its own slowness. Without a link the usual
    ones are compared. To have the links of a running kvrelay cluster, let `kvrelay doctor` measure
    them.

    Examples:

      kvrelay predict http://127.0.0.1:8000/v1

      kvrelay predict http://gpu-7:8000/v1 --link-gbit 25 --rtt-ms 0.1

      kvrelay predict http://gpu-7:8000/v1 --model llama --config meta-llama/Llama-3.1-8B --json

      kvrelay doctor --json | kvrelay predict http://127.0.0.1:8000/v1 --model b --links -
    """
    from kvrelay.bench.audit.predict.committed import load_audit
    from kvrelay.bench.audit.predict.endpoint import Endpoint
    from kvrelay.bench.audit.predict.placing import Engine, place

    audit = load_audit(analysis)
    wires = _wires(link_gbit, rtt_ms, links)
    with closing(Endpoint(url, model, api_key)) as endpoint:
        size = _size(kv_bytes_per_token, config, endpoint)
        fit, timed = _probe(endpoint, seconds, longest)
        engine = Engine(fit, size.bytes_per_token, endpoint.max_tokens)
        name = endpoint.model
    rows = [
        place(load, law, engine, wire) for wire in wires for load, law in sorted(audit.laws.items())
    ]
    found = {
        "engine": _engine_row(url, name, fit, timed, engine.max_tokens),
        "kv": {"bytes_per_token": size.bytes_per_token, "words": size.words},
        "audit": {"analysis": str(audit.path), "meta": dict(audit.meta)},
        "rows": rows,
    }
    _print(found, as_json, link_gbit is None and links is None)


def _wires(link_gbit: float | None, rtt_ms: float, links: str | None) -> Sequence[Wire]:
    from kvrelay.bench.audit.predict.links import given_wire, measured_wires, usual_wires

    if links is None:
        return usual_wires(rtt_ms) if link_gbit is None else [given_wire(link_gbit, rtt_ms)]
    if link_gbit is not None or rtt_ms:
        raise ConfigError("--links has rates and times of its own; leave out --link-gbit, --rtt-ms")
    try:
        text = sys.stdin.read() if links == "-" else Path(links).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--links {links}: {error}; `kvrelay doctor --json` prints it") from None
    return measured_wires(text, links)


def _size(given: float | None, config: str | None, endpoint: Endpoint) -> KvSize:
    from kvrelay.bench.audit.predict.kv_size import KvSize, size_of_model

    if given is not None:
        if not 0 < given < 1e9:
            raise ConfigError(f"--kv-bytes-per-token {given:g}: give bytes, such as 131072")
        return KvSize(given, "as given")
    where = config or endpoint.root
    if where is None:
        raise ConfigError(
            f"{endpoint.model}: the server does not say which model that is; give --config (its "
            "config.json, folder or Hugging Face id) or --kv-bytes-per-token"
        )
    return size_of_model(where)


def _probe(
    endpoint: Endpoint, seconds: float, longest: int
) -> tuple[EngineFit, dict[int, list[float]]]:
    from kvrelay.bench.audit.predict.engine_fit import fit_engine, samples_by_rung
    from kvrelay.bench.audit.predict.engine_probe import measure
    from kvrelay.bench.progress import progress_bar

    with progress_bar(f"timing prompts of {endpoint.model}", seconds) as tell:
        samples = measure(endpoint, seconds, longest, tell)
    return fit_engine(samples), samples_by_rung(samples)


def _engine_row(
    url: str,
    model: str,
    fit: EngineFit,
    timed: dict[int, list[float]],
    max_tokens: int | None,
) -> dict[str, Any]:
    from kvrelay.bench.stats import figure

    return {
        "url": url,
        "model": model,
        "max_tokens": max_tokens,
        "fixed_s": fit.cost.fixed_s,
        "per_token_s": fit.cost.per_token_s,
        "per_token_squared_s": fit.cost.per_token_squared_s,
        "off": fit.off,
        "tokens": list(fit.tokens),
        "samples": fit.samples,
        "timed": [{"tokens": rung, "ttft_s": figure(each)} for rung, each in timed.items()],
    }


def _print(found: dict[str, Any], as_json: bool, any_link: bool) -> None:
    from kvrelay.bench.audit.predict.predict_words import show
    from kvrelay.cluster.cli.console import out

    if as_json:
        out.print_json(json.dumps(found))
    else:
        show(found, any_link)
