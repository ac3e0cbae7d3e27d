"""A NIXL agent over UCX as this project uses it: no progress thread, no torch, path attested.

The bindings are loaded from the extension module itself: NIXL's Python layer (1.3.2) imports
torch, which would cost a store 3 s and 250 MB for nothing. Without a progress thread an agent
costs nothing while nobody calls it, and moves nothing either: both ends must be polled.
"""

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import logging
import mmap
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from kvrelay.relay.transports.base import Span, TransferError
from kvrelay.relay.transports.ucx import UcxLog, log_settings

logger = logging.getLogger(__name__)
# Wheels for CUDA 13 and 12; for host memory both do, and need no CUDA.
_PACKAGES = ("nixl_cu13", "nixl_cu12")
_LOG_KEPT_BYTES = 1 << 20
# UCX 1.21 answers a read over TCP in pieces of this size, and has 8 KiB: 94 MB between two network
# namespaces, polled without a pause, take 64 to 85 ms then, and 13 to 50 with these.
_TCP_PIECES = {"UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "512k"}
_libc = ctypes.CDLL(None)


def load_bindings() -> ModuleType:
    """NIXL's extension module.

    Raises:
        TransferError: NIXL is not installed, or does not load here.
    """
    failures = []
    for package in _PACKAGES:
        name = f"{package}._bindings"
        if name in sys.modules:
            return sys.modules[name]
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            continue
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = Path(found.submodule_search_locations[0]) / f"_bindings{suffix}"
            spec = importlib.util.spec_from_file_location(name, file)
            if not file.exists() or spec is None or spec.loader is None:
                continue
            try:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            except ImportError as error:
                failures.append(str(error))
                continue
            sys.modules[name] = module
            return module
    raise TransferError("; ".join(failures) or "NIXL is not installed: pip install nixl-cu12")


class State(Enum):
    """Of a posted read."""

    MOVING = "moving"
    LANDED = "landed"
    FAILED = "failed"


class _Attestation:
    """UCX's log, in memory that goes with the process, read as it grows."""

    def __init__(self) -> None:
        self._log = UcxLog()
        self._fd = os.memfd_create("kvrelay-ucx-log", os.MFD_CLOEXEC)
        self._read_bytes = 0
        self._trimmed_bytes = 0
        self._rest = b""

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """While UCX starts. What the user has set stays as it is; then no path may be known."""
        settings = log_settings(f"/proc/self/fd/{self._fd}")
        ours = {} if "UCX_LOG_FILE" in os.environ else settings
        if not _TCP_PIECES.keys() & os.environ.keys():  # one without the other would not fit
            ours = ours | _TCP_PIECES
        ours = {name: value for name, value in ours.items() if name not in os.environ}
        os.environ.update(ours)
        try:
            yield
        finally:  # child processes must not write into our log
            for name in ours:
                os.environ.pop(name, None)

    def drain(self) -> UcxLog:
        """The log with all that has been written until now."""
        _libc.fflush(None)  # UCX does not, after each line
        size = os.fstat(self._fd).st_size
        while self._read_bytes < size:
            part = os.pread(self._fd, 1 << 20, self._read_bytes)
            self._read_bytes += len(part)
            *lines, self._rest = (self._rest + part).split(b"\n")
            for line in lines:
                self._log.feed(line.decode(errors="replace"))
        for level, message in self._log.problems:
            logger.warning("UCX %s: %s", level.lower(), message)
        self._log.problems.clear()
        if self._read_bytes - self._trimmed_bytes > _LOG_KEPT_BYTES:
            self._trim()
        return self._log

    def _trim(self) -> None:
        """Give back the memory of what has been read; UCX goes on writing behind it."""
        start = self._trimmed_bytes
        length = (self._read_bytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
        with mmap.mmap(self._fd, length, offset=start) as view:
            view.madvise(mmap.MADV_REMOVE)
        self._trimmed_bytes += length


_attestation: _Attestation | None = None


def _the_attestation() -> _Attestation:
    """One a process: UCX opens its log once."""
    global _attestation
    if _attestation is None:
        _attestation = _Attestation()
    return _attestation


class NixlAgent:
    """An agent and the peers that it knows. Errors of NIXL come out as `TransferError`."""

    def __init__(self, memory: str = "DRAM") -> None:
        """Start UCX, which takes half a second.

        Args:
            memory: NIXL's name of the kind of memory that is registered: DRAM or VRAM.
        """
        self.name = f"kvrelay-{uuid.uuid4().hex}"  # a process that comes back is another agent
        self._nixl = load_bindings()
        self._memory = {"DRAM": self._nixl.DRAM_SEG, "VRAM": self._nixl.VRAM_SEG}[memory]
        self._errors = tuple(
            value
            for name, value in vars(self._nixl).items()
            if name.startswith("nixl") and isinstance(value, type) and issubclass(value, Exception)
        )
        self._attestation = _the_attestation()
        config = self._nixl.nixlAgentConfig()
        config.useProgThread = False
        config.useListenThread = False
        config.syncMode = self._nixl.NIXL_THREAD_SYNC_NONE
        with self._attestation.environment(), self._translated("UCX does not start"):
            self._agent = self._nixl.nixlAgent(self.name, config)
            self._ucx = self._agent.createBackend("UCX", {})
        self._attestation.drain()
        self._metadata: bytes | None = None
        self._endpoints: dict[str, str] = {}  # that we asked for; peers asked for the others

    @property
    def metadata(self) -> bytes:
        """What a peer needs to connect and to read what is registered by now."""
        if self._metadata is None:
            self._metadata = self._agent.getLocalMD()
        return self._metadata

    def register(self, region: Span, device: int) -> None:
        """Make memory known; peers that connected before do not learn of it."""
        with self._translated(f"cannot register {region.num_bytes} bytes of memory"):
            self._agent.registerMem(
                self._descriptors("nixlRegDList", [region], device), [self._ucx]
            )
        self._metadata = None

    def connect(self, metadata: bytes) -> str:
        """Get to know a peer; its name."""
        log = self._attestation.drain()
        log.created.clear()
        with self._translated("cannot connect"):
            name = self._agent.loadRemoteMD(metadata).decode()
        log = self._attestation.drain()
        if log.created:
            self._endpoints.pop(name, None)
            if len(log.created) == 1:
                self._endpoints[name] = log.created[0]
        return str(name)

    def forget(self, peer: str) -> None:
        """Let go of a peer."""
        # NIXL lets go of a peer whose connection broke by itself.
        with contextlib.suppress(*self._errors):
            self._agent.invalidateRemoteMD(peer)
        endpoint = self._endpoints.pop(peer, None)
        if endpoint is not None:
            self._attestation.drain().forget(endpoint)

    def post_read(
        self,
        peer: str,
        spans: Sequence[Span],
        targets: Sequence[Span],
        devices: tuple[int, int],
    ) -> int:
        """Start reading; a handle, which must be released, but not before it has ended.

        Args:
            peer: whose memory.
            spans: what to read.
            targets: where to.
            devices: numbers of the targets' and the spans' device.
        """
        with self._translated("cannot read"):
            handle = self._agent.createXferReq(
                self._nixl.NIXL_READ,
                self._descriptors("nixlXferDList", targets, devices[0]),
                self._descriptors("nixlXferDList", spans, devices[1]),
                peer,
                "",
                [self._ucx],
            )
        try:
            with self._translated("cannot read"):
                self._agent.postXferReq(handle, "")
        except TransferError:
            self.release(handle)
            raise
        return int(handle)

    def state(self, handle: int) -> State:
        """How a posted read stands; moves everything on."""
        try:
            status = self._agent.getXferStatus(handle)
        except self._errors:
            return State.FAILED
        return State.LANDED if status == self._nixl.NIXL_SUCCESS else State.MOVING

    def release(self, handle: int) -> None:
        """Free a handle. One that is still moving would go on writing, unseen (tried)."""
        with contextlib.suppress(*self._errors):
            self._agent.releaseXferReq(handle)

    def progress(self) -> None:
        """Serve what peers ask for; over TCP nothing moves without it."""
        with contextlib.suppress(*self._errors):
            self._agent.getNotifs({}, [])

    def path(self, peer: str, num_bytes: int) -> str:
        """By which path reads of this size come from a peer, or `unknown`."""
        log = self._attestation.drain()
        endpoint = self._endpoints.get(peer)
        return log.path(log.accepted if endpoint is None else [endpoint], num_bytes)

    def close(self) -> None:
        """End the agent. Reads under way end too, without a further write (tried)."""
        del self._agent

    def _descriptors(self, kind: str, spans: Sequence[Span], device: int) -> Any:
        rest = ("",) if kind == "nixlRegDList" else ()
        entries = [(span.address, span.num_bytes, device, *rest) for span in spans]
        return getattr(self._nixl, kind)(self._memory, entries)

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise TransferError(f"{what}: {error}") from error
