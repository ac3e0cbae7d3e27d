"""`kvrelay bench`: the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvrelay.bench.options import (
    CellLinks,
    JsonFile,
    Lengths,
    Loads,
    Model,
    QuietWait,
    Repeats,
    SamplesFile,
    Seed,
    Shared,
    Smoke,
    parse_lengths,
)

app = typer.Typer(
    help="Measure what relay costs and saves, on this machine, with real engines.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

TEST_BED_LINKS = "same-node,unshaped,1gbit,100mbit"
SIMULATED_POLICIES = "always,never,min_tokens:256,floor_and_queue:1024,8,cost"
FIXED_RULES = "always,never,min_tokens:64,min_tokens:256,min_tokens:2048,floor_and_queue:1024,8"
SCORED_POLICIES = f"{FIXED_RULES},similarity:0.85,0.90,cost"


@app.command()
def hit(
    *,
    tokens: Annotated[
        str, typer.Option(help="lengths of the shared prefix")
    ] = "512,1024,2048,4096,7900",
    repeats: Repeats = 5,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    peer: Annotated[
        bool, typer.Option("--peer", help="beside it vLLM's ExampleConnector on shared memory")
    ] = False,
    model: Model = "demo",
    seed: Seed = 1,
    quiet_wait: QuietWait = 10.0,
    smoke: Smoke = False,
) -> None:
    """TTFT of a prefix that another agent has computed: relayed, recomputed, or at hand.

    Every request is a stream of one token at the HTTP endpoint, and is counted only if vLLM
    itself says that it reused exactly the tokens that it should.

    Examples:

      kvrelay bench hit --smoke

      kvrelay bench hit --tokens 512,1024,2048,4096,7900 --repeats 5 --peer --json hit.json
    """
    from kvrelay.bench import run_hit

    run_hit.main(
        run_hit.Options(
            lengths=tuple(parse_lengths("512,1024" if smoke else tokens)),
            repeats=1 if smoke else repeats,
            json_file=json_file,
            samples_file=samples_file,
            peer=peer,
            model=model,
            seed=seed,
            quiet_wait_s=quiet_wait,
            smoke=smoke,
        )
    )


@app.command()
def miss(
    *,
    tokens: Annotated[str, typer.Option(help="lengths of the prompts")] = "512,2048",
    repeats: Annotated[int, typer.Option(help="pairs per length, over all starts", min=1)] = 40,
    restarts: Annotated[int, typer.Option(help="starts of the engines", min=1)] = 3,
    alternations: Annotated[
        int, typer.Option(help="of saving and not saving beside a running request; 0: leave out")
    ] = 20,
    idle: Annotated[
        float, typer.Option(help="seconds over which idle CPU is counted; 0: leave out", min=0)
    ] = 20.0,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    model: Model = "demo",
    seed: Seed = 1,
    quiet_wait: QuietWait = 10.0,
    smoke: Smoke = False,
    gate: Annotated[
        bool, typer.Option("--gate", help="exit 1 if the connector's own CPU share is too high")
    ] = False,
) -> None:
    """What the connector costs where nothing is found: never-seen prompts, with it and without.

    Also the connector's CPU beside TTFT, ITL of a request that runs while others are saved, and
    CPU when nothing is asked.

    Examples:

      kvrelay bench miss --smoke

      kvrelay bench miss --tokens 512,2048 --repeats 40 --json miss.json
    """
    from kvrelay.bench import run_miss

    run_miss.main(
        run_miss.Options(
            lengths=tuple(parse_lengths("512" if smoke else tokens)),
            repeats=3 if smoke else repeats,
            restarts=1 if smoke else restarts,
            alternations=2 if smoke else alternations,
            idle_s=3.0 if smoke else idle,
            json_file=json_file,
            samples_file=samples_file,
            model=model,
            seed=seed,
            quiet_wait_s=quiet_wait,
            smoke=smoke,
            gate=gate,
        )
    )


@app.command()
def codecs(
    *,
    tokens: Annotated[
        int, typer.Option(help="of real text whose KV is measured on", min=1)
    ] = 20_480,
    repeats: Annotated[int, typer.Option(help="passes of each codec over all blocks", min=1)] = 9,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    model: Model = "demo",
    seed: Seed = 1,
    quiet_wait: QuietWait = 10.0,
    smoke: Smoke = False,
) -> None:
    """What the lossless codecs make of real KV, how fast, and on which links that pays.

    An engine computes the KV of real text (about a minute for 20,000 tokens on two cores) and
    saves it to a store; then each block goes through each codec and has to come back as it was.
    The last column is what to compare a link with: on a slower one the codec saves time.

    Examples:

      kvrelay bench codecs --smoke

      kvrelay bench codecs --tokens 20480 --repeats 9 --json codecs.json
    """
    from kvrelay.bench import run_codecs

    run_codecs.main(
        run_codecs.Options(
            tokens=run_codecs.SMOKE_TOKENS if smoke else tokens,
            repeats=1 if smoke else repeats,
            json_file=json_file,
            samples_file=samples_file,
            model=model,
            seed=seed,
            quiet_wait_s=quiet_wait,
            smoke=smoke,
        )
    )


@app.command()
def topology(
    *,
    links: Annotated[
        str | None,
        typer.Option(
            help="where A is: `same-node`, or behind such a wire: RATE or RATE-RTT",
            show_default=TEST_BED_LINKS,
        ),
    ] = None,
    near: Annotated[
        str | None, typer.Option(help="a real cluster's node: B's, where this command runs")
    ] = None,
    far: Annotated[str | None, typer.Option(help="and the node from which B's KV comes")] = None,
    ways: Annotated[
        str, typer.Option(help="between nodes: each transport and codec to compare")
    ] = "nixl/raw,nixl/split,nixl/lz4,plasma/raw",
    tokens: Annotated[
        str, typer.Option(help="lengths of the shared prefix")
    ] = "512,2048,4096,7900",
    repeats: Repeats = 5,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    model: Model = "demo",
    seed: Seed = 1,
    quiet_wait: QuietWait = 10.0,
    smoke: Smoke = False,
) -> None:
    """What a relay costs within a node, and between two nodes by the wire between them.

    The two nodes are network namespaces of this machine, with a Ray node in each and a wire
    between them that is made into each link in turn: `unshaped`, or any rate such as `10gbit`,
    `200mbit`, `40mbit`; with a round-trip time, as between zones, `100mbit-5ms`. That needs root,
    `ip` and `tc`; `--links same-node` alone does not. Nothing of it remains, and what a killed run
    left is removed by the next.

    A relay counts only if its record names TCP as its path and the wire's interface has counted
    its bytes. Beside it stand a recomputation, a local hit, and how long a plain TCP stream
    would take for the same bytes over the same link (`wire_s`): relay pays where the transfer is
    well below the recomputation.

    With `--near` and `--far` the nodes are two of the Ray that RAY_ADDRESS names, by their label
    `kvrelay/node`, and the link, called `cluster`, is whatever connects them: no interface is
    read, any path counts that the relay attests, and the plain stream runs between the same two
    nodes. Run it on the near node; the model has to be found at both.

    Examples:

      kvrelay bench topology --smoke

      RAY_ADDRESS=auto kvrelay bench topology --near node-1 --far node-2

      kvrelay bench topology --links same-node,unshaped,1gbit,100mbit --json topology.json

      kvrelay bench topology --links 100mbit,100mbit-1ms,100mbit-5ms --tokens 2048 --repeats 3
    """
    from kvrelay.bench import run_topology
    from kvrelay.bench.topology import CLUSTER_LINKS, parse_cluster, parse_links, parse_ways

    cluster = parse_cluster(near, far, links)
    of_the_bed = "same-node,unshaped,100mbit" if smoke else links or TEST_BED_LINKS
    run_topology.main(
        run_topology.Options(
            links=CLUSTER_LINKS if cluster else parse_links(of_the_bed),
            ways=parse_ways(ways),
            lengths=tuple(parse_lengths("512" if smoke else tokens)),
            repeats=1 if smoke else repeats,
            json_file=json_file,
            samples_file=samples_file,
            model=model,
            seed=seed,
            quiet_wait_s=min(quiet_wait, 1.0) if smoke else quiet_wait,
            smoke=smoke,
            cluster=cluster,
        )
    )


@app.command()
def faults(
    *,
    injections: Annotated[int, typer.Option(help="how many faults strike")] = 200,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    seed: Annotated[int, typer.Option(help="of the order, the moments and the forms")] = 1,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="30 injections, within 10 minutes")
    ] = False,
) -> None:
    """What faults do to requests: never a wrong token, never a failure, nothing left behind.

    Real stores and engines on two nodes, which are network namespaces of this machine (root,
    `ip` and `tc`). While blocks come over from A, or before, something goes wrong: the wire is
    cut or crawls, A's node, a store, A's engine or the directory is killed, the source stands
    still, bytes are corrupt or cut off, the weights are others, blocks are evicted under the
    read, there is no room, or the clocks jump. B has to answer with the tokens that it computes
    itself, and with a reason that the fault explains.

    The exit status is 1 if a request to a surviving replica failed, a token or a reason was
    wrong, or anything leaked. Requests on a replica that was killed are counted apart, with the
    time until it was back.

    Examples:

      kvrelay bench faults --smoke

      kvrelay bench faults --injections 200 --json faults.json --samples faults.jsonl
    """
    from kvrelay.bench import run_faults

    run_faults.main(
        run_faults.Options(
            injections=run_faults.SMOKE_INJECTIONS if smoke else injections,
            json_file=json_file,
            samples_file=samples_file,
            seed=seed,
            smoke=smoke,
        )
    )


@app.command()
def eviction(
    *,
    traces: Annotated[
        str, typer.Option(help="generated ones by name, or JSONL files of Mooncake or Bailian")
    ] = "tool_agent,bailian_a,coder",
    capacity: Annotated[
        str, typer.Option(help="slots of the store, as shares of a trace's different blocks")
    ] = "0.03,0.1,0.3",
    repeats: Annotated[int, typer.Option(help="seeds per generated trace", min=1)] = 5,
    prefill: Annotated[
        str, typer.Option(help="a,b: a prefill of n tokens takes a*n + b*n*n seconds")
    ] = "6e-4,2.3e-7",
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    seed: Seed = 11,
    smoke: Smoke = False,
) -> None:
    """What policies of eviction save, on streams with the statistics of published traces.

    Replays; no engine runs. Policies: least recently used, GDSF, value density (the store's), and
    one that knows the future. Seeds 1 to 3 were used while value density was made: others tell.

    Examples:

      kvrelay bench eviction --smoke

      kvrelay bench eviction --traces tool_agent,bailian_a,coder --capacity 0.1,0.3 --json out.json

      kvrelay bench eviction --traces toolagent_trace.jsonl --capacity 0.1
    """
    from kvrelay.bench import run_eviction

    run_eviction.main(
        run_eviction.Options(
            traces=run_eviction.parse_traces(traces),
            capacities=run_eviction.parse_capacities("0.1" if smoke else capacity),
            repeats=1 if smoke else repeats,
            seed=seed,
            prefill=run_eviction.parse_prefill(prefill),
            json_file=json_file,
            samples_file=samples_file,
            smoke=smoke,
        )
    )


@app.command()
def simulate(
    *,
    trace: Annotated[
        str, typer.Option(help="`generated`, a generated one by name, or a JSONL file of Mooncake")
    ] = "generated",
    requests: Annotated[int, typer.Option(help="its first so many", min=1)] = 20_000,
    agents: Annotated[int, typer.Option(help="engines", min=1)] = 100,
    nodes: Annotated[int, typer.Option(help="that they are spread over", min=1)] = 20,
    links: Annotated[
        str, typer.Option(help="of the nodes, in turn: RATE or RATE-RTT")
    ] = "1gbit,200mbit,100mbit",
    load: Annotated[
        float, typer.Option(help="share of all engines' time, were nothing reused", min=0.01)
    ] = 0.6,
    policies: Annotated[str, typer.Option(help="what is compared")] = SIMULATED_POLICIES,
    repeats: Annotated[int, typer.Option(help="seeds", min=1)] = 1,
    calibrate: Annotated[
        Path | None,
        typer.Option(help="JSON of `bench topology` to fit engines to, and to compare with"),
    ] = None,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    seed: Seed = 1,
    smoke: Smoke = False,
) -> None:
    """What policies do to TTFT on a cluster of any size: a simulation of the demo model on CPUs.

    The policies are the engines' own, one instance for each; queues, caches, stores and links are
    simulated. `--calibrate` gives them the speed of real engines, and says how far off they are:
    each length is forecast from the others, each link from the shared node and plain TCP.

    Examples:

      kvrelay bench simulate --smoke

      kvrelay bench simulate --policies always,never,min_tokens:256 --calibrate topology.json

      kvrelay bench simulate --trace toolagent_trace.jsonl --agents 100 --nodes 20 --json sim.json
    """
    from kvrelay.bench import run_simulate
    from kvrelay.bench.replayed import parse_policies

    run_simulate.main(
        run_simulate.Options(
            trace=run_simulate.parse_trace(trace),
            requests=run_simulate.SMOKE_REQUESTS if smoke else requests,
            load=load,
            policies=parse_policies(policies),
            world=run_simulate.parse_world(agents, nodes, links),
            repeats=1 if smoke else repeats,
            seed=seed,
            calibrate=calibrate,
            json_file=json_file,
            samples_file=samples_file,
            smoke=smoke,
        )
    )


@app.command()
def policies(
    *,
    which: Annotated[
        str, typer.Option("--policies", help="scored on what is measured")
    ] = SCORED_POLICIES,
    pairs: Annotated[int, typer.Option(help="of each cell", min=1)] = 8,
    max_pairs: Annotated[
        int, typer.Option(help="of a cell whose arms are not known to 5 % by then", min=1)
    ] = 16,
    loads: Loads = "idle,busy,tail,partial",
    links: CellLinks = "same-node,1gbit,200mbit,150mbit,100mbit",
    tokens: Lengths = "512,2048,6000",
    shared: Shared = "0,0.25,0.5,0.95",
    json_file: JsonFile = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the raw data beside --json")
    ] = False,
    model: Model = "demo",
    seed: Seed = 1,
    quiet_wait: QuietWait = 10.0,
    smoke: Smoke = False,
) -> None:
    """How far policies are from always choosing the better arm, by prefix, length and link.

    On two nodes (root, `ip` and `tc`). Idle cells: both arms are measured on the same requests, and
    every policy is scored by replay of its decisions. Busy ones and those where a part can be
    relayed are measured live, in blocks. The records tell how right the predictions of `cost` were.

    The full grid takes many hours, and how many is said before it begins. Each pair is on disk as
    soon as it is measured, in the JSONL beside `--json`, and `--resume` goes on from there: what
    says most comes first. The report is of all that has been measured into that file.

    Examples:

      kvrelay bench policies --smoke

      kvrelay bench policies --json policies.json

      kvrelay bench policies --json policies.json --resume

      kvrelay bench policies --loads idle,busy --links 200mbit --tokens 512,2048 --json some.json
    """
    from kvrelay.bench import policies_plan, run_policies
    from kvrelay.bench.replayed import parse_policies

    cells = policies_plan.parse_cells(loads, links, tokens, shared)
    run_policies.main(
        run_policies.Options(
            policies=parse_policies(which),
            cells=tuple(policies_plan.smoke_grid() if smoke else cells),
            least=1 if smoke else pairs,
            most=1 if smoke else max(pairs, max_pairs),
            json_file=json_file,
            resume=resume,
            model=model,
            seed=seed,
            quiet_wait_s=min(quiet_wait, run_policies.SMOKE_QUIET_WAIT_S) if smoke else quiet_wait,
            smoke=smoke,
        )
    )


@app.command()
def payoff(
    *,
    streams: Annotated[int, typer.Option(help="simulated, of all kinds in turn", min=1)] = 1000,
    json_file: JsonFile = None,
    samples_file: SamplesFile = None,
    seed: Seed = 1,
    smoke: Smoke = False,
) -> None:
    """How often the estimate of what relay saves is wrong, on streams whose truth is known.

    Simulates; no engine runs. Streams of sessions with heavy-tailed times, rare and frequent
    draws, wrong predictions or none, and a world that changes; and a stratum planted to lose,
    which has to turn itself off and to come back.

    Examples:

      kvrelay bench payoff --smoke

      kvrelay bench payoff --streams 1000 --json payoff.json
    """
    from kvrelay.bench import run_payoff

    run_payoff.main(
        run_payoff.Options(
            streams=run_payoff.SMOKE_STREAMS if smoke else streams,
            seed=seed,
            json_file=json_file,
            samples_file=samples_file,
            smoke=smoke,
        )
    )
