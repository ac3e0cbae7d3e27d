"""Pairs of parties, of every transport: what the suites of this folder run over."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transfer_hosts import Host, LocalHost
from transfer_ways import Pair, Way


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import ray

    patch = pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("cwd"))  # STYLE: never start Ray in the checkout
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=160 << 20,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
    patch.undo()


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes parties that end with the test."""
    made: list[Host] = []

    def make(way: Way, prefix: tuple[str, ...] = ()) -> Host:
        if way.kind == "plasma":
            request.getfixturevalue("ray_cluster")
        made.append(way.host(prefix))
        return made[-1]

    yield make
    for host in made:
        host.close()


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """One pair for the tests of a module; a test leaves nothing behind in it."""
    way = request.param
    if way.kind == "plasma":
        request.getfixturevalue("ray_cluster")
    source, reader = way.host(), way.host()
    if isinstance(source, LocalHost) and isinstance(reader, LocalHost):
        reader.peer.others.append(source.peer)
    yield Pair(way, source, reader)
    statuses = [reader.close(), source.close()]
    assert not any(statuses), f"a party ended with {statuses}"
