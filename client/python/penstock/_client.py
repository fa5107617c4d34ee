"""The client of a penstockd."""

from __future__ import annotations

import atexit
import dataclasses
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Final, Literal, NamedTuple, TypeVar, overload

from . import _core
from ._core import Namespace
from ._namespace import NamespaceDescriptor
from ._operation import Op
from ._status import Code, make_error, to_code

T = TypeVar("T")

Tier = Literal["none", "gpu", "dram", "ssd", "remote"]
_TIERS: Final[tuple[Tier, ...]] = ("none", "gpu", "dram", "ssd", "remote")

# get() without a buffer asks for this much at first, and a second time for longer values.
_FIRST_READ: Final[int] = 64 << 10
_FIRST_READ_TOTAL: Final[int] = 16 << 20


class MatchGroup(NamedTuple):
    """The keys of the chunks of a prompt in one KV group, from the first on."""

    ns: Namespace
    keys: Sequence[bytes]
    window_chunks: int = 0
    """0: full attention, every chunk is needed. Else: the last so many before the end."""


class MatchDetail(NamedTuple):
    """One chunk that a fetch of the answer needs."""

    group: int
    chunk: int
    """Its position in the group's keys."""
    stored_bytes: int
    tier: Tier


class MatchResult(NamedTuple):
    """The longest stored prefix."""

    chunks: int
    """How many; 0 when nothing matches and when ``code`` is not OK."""
    bytes: int
    """What a fetch of it brings, over all groups."""
    reservation: int
    """0: nothing is reserved."""
    code: Code
    """OK when the daemon answered."""
    message: str
    details: list[MatchDetail]


class GetResult(NamedTuple):
    """One value of get_many()."""

    code: Code
    size: int
    """Bytes delivered; needed, when ``code`` is BUFFER_TOO_SMALL."""
    data: bytes | None
    """The value, unless it went into a buffer or ``code`` is not OK."""
    message: str


class PutItem(NamedTuple):
    """One value for put_many()."""

    key: bytes
    buffer: _core.Buffers
    parent: bytes | None = None
    token_count: int = 0


class Stat(NamedTuple):
    """What is stored under a key."""

    stored_bytes: int
    token_count: int
    pins: int
    children: int
    idle_seconds: float
    """Since the last use."""
    tier: Tier


class Client:
    """Keeps one session with one penstockd, and reconnects by itself.

    Making one never fails because the daemon is down, and no call waits longer than its timeout.
    Thread-safe. A process that forks makes its own clients afterwards.

    Buffers are anything with the buffer protocol, contiguous tensors on the CPU, or a list of such,
    and are never copied. A key is 32 bytes: see prefix_key() and named_key().
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:7411",
        wire: str = "auto",
        tenant: str = "default",
        name: str = "",
        connect_timeout: float = 2.0,
        *,
        patience: float = 0.25,
        streams: int = 2,
        max_in_flight: int = 256,
        verify_checksums: bool = True,
    ) -> None:
        """``address``: ``"unix:///path"`` or ``"tcp://host:port"``. ``wire``: ``"auto"``,
        ``"local"`` (at a Unix socket), ``"tcp"`` or ``"ucx"``. ``name`` is what an operator sees.
        ``patience``: how many seconds operations wait for a daemon that went away; then they are
        DISCONNECTED at once until it is back.
        ``max_in_flight``: operations; further ones are BUSY at once. Raises InvalidArgument."""
        self._core = _core.Client(
            address=address,
            wire=wire,
            tenant=tenant,
            name=name,
            connect_timeout=connect_timeout,
            patience=patience,
            streams=streams,
            max_in_flight=max_in_flight,
            verify_checksums=verify_checksums,
        )
        self._tenant = tenant
        self._background_lock = threading.Lock()
        self._background: list[Op[None]] = []
        _clients.add(self)

    # --- The session ---

    @property
    def connected(self) -> bool:
        return bool(self._core.stats()["connected"])

    @property
    def incarnation(self) -> int:
        """Of the daemon: another number after each restart. 0 before the first connection."""
        return int(self._core.stats()["incarnation"])

    def wait_connected(self, timeout: float) -> bool:
        """True once connected; False when ``timeout`` seconds came first."""
        return self._core.wait_connected(timeout)

    def stats(self) -> dict[str, Any]:
        """Counters and the state of the connection; ``last_error`` says why there is none."""
        return self._core.stats()

    def close(self) -> None:
        """Cancels what is in flight and waits for it, then disconnects. Idempotent."""
        self._core.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def namespace(self, descriptor: NamespaceDescriptor) -> Namespace:
        """Makes a namespace known to the daemon, now and after each reconnect. Never waits.

        It is open as long as the Namespace is referred to. While the daemon has no room for it,
        operations on it end with RESOURCE_EXHAUSTED.

        A descriptor without a tenant is of the client's. Raises InvalidArgument.
        """
        if not descriptor.tenant:
            descriptor = dataclasses.replace(descriptor, tenant=self._tenant)
        return self._core.open_namespace(descriptor)

    def ping(self, timeout: float = 1.0) -> float:
        """Seconds of a round trip through the daemon's data thread."""
        start = time.monotonic()
        self.ping_async(timeout).result()
        return time.monotonic() - start

    def ping_async(self, timeout: float = 1.0) -> Op[None]:
        return Op(self._core.ping(timeout), _nothing)

    # --- The longest stored prefix ---

    def match(
        self,
        groups: Iterable[MatchGroup],
        reserve_ttl: float | None = None,
        timeout: float = 1.0,
    ) -> Op[MatchResult]:
        """Asks for the longest prefix that is whole in every group.

        With ``reserve_ttl`` the daemon keeps it for so many seconds, or until release(). The result
        never raises: nothing matches when the daemon is away, and ``code`` says so.
        """
        return Op(self._core.match(list(groups), reserve_ttl, timeout), _match_result)

    def release(self, reservation: int, timeout: float = 1.0) -> Op[None]:
        """Gives a reservation back, in the background: nobody needs to wait for the result."""
        op = Op(self._core.release(reservation, timeout), _nothing)
        with self._background_lock:  # Kept, as dropping it would cancel it.
            self._background = [other for other in self._background if not other.done()]
            self._background.append(op)
        return op

    # --- One value ---

    def put(
        self,
        ns: Namespace,
        key: bytes,
        buffer: _core.Buffers,
        parent: bytes | None = None,
        replace: bool = False,
        timeout: float = 5.0,
        *,
        token_count: int = 0,
    ) -> Code:
        """Stores a value. OK once it is committed; ALREADY_EXISTS when one was there before.

        Raises PenstockError.
        """
        return self.put_async(
            ns, key, buffer, parent, replace, timeout, token_count=token_count
        ).result()

    def put_async(
        self,
        ns: Namespace,
        key: bytes,
        buffer: _core.Buffers,
        parent: bytes | None = None,
        replace: bool = False,
        timeout: float = 5.0,
        *,
        token_count: int = 0,
    ) -> Op[Code]:
        """The same; the buffer must not change until the operation is done."""
        items = [(ns, key, buffer, parent, token_count)]
        return Op(self._core.store(items, replace, 0, timeout), _stored)

    @overload
    def get(
        self, ns: Namespace, key: bytes, into: None = None, *, timeout: float = 5.0
    ) -> bytes: ...
    @overload
    def get(
        self, ns: Namespace, key: bytes, into: _core.Buffers, *, timeout: float = 5.0
    ) -> int: ...

    def get(
        self, ns: Namespace, key: bytes, into: _core.Buffers | None = None, *, timeout: float = 5.0
    ) -> bytes | int:
        """A value; or, with ``into``, how many bytes of that buffer it filled.

        Raises Miss, and PenstockError with BUFFER_TOO_SMALL, CHECKSUM_MISMATCH, ...
        """
        if into is not None:
            return self.get_async(ns, key, into, timeout=timeout).result()
        result = self.get_many(ns, [key], timeout=timeout)[0]
        if result.data is None:
            raise make_error(result.code, result.message)
        return result.data

    def get_async(
        self, ns: Namespace, key: bytes, into: _core.Buffers, *, timeout: float = 5.0
    ) -> Op[int]:
        """get() into a buffer, which belongs to the operation until it is done."""
        return Op(self._core.fetch([(ns, key, into)], 0, 0, False, timeout), _fetched)

    def stat(self, ns: Namespace, key: bytes, timeout: float = 1.0) -> Stat:
        """What is stored under a key. Raises Miss and PenstockError."""
        return self.stat_async(ns, key, timeout).result()

    def stat_async(self, ns: Namespace, key: bytes, timeout: float = 1.0) -> Op[Stat]:
        return Op(self._core.stat(ns, key, timeout), _stat)

    # --- Many values: one result each, in the order given, and no exception for any of them ---

    def put_many(
        self,
        ns: Namespace,
        items: Iterable[PutItem | tuple[bytes, _core.Buffers]],
        replace: bool = False,
        timeout: float = 5.0,
    ) -> list[Code]:
        return self.put_many_async(ns, items, replace, timeout).result()

    def put_many_async(
        self,
        ns: Namespace,
        items: Iterable[PutItem | tuple[bytes, _core.Buffers]],
        replace: bool = False,
        timeout: float = 5.0,
    ) -> Op[list[Code]]:
        wanted = [(ns, *PutItem(*item)) for item in items]
        return Op(self._core.store(wanted, replace, 0, timeout), _codes)

    def get_many(
        self,
        ns: Namespace,
        keys: Sequence[bytes],
        into: Sequence[_core.Buffers] | None = None,
        *,
        timeout: float = 5.0,
        reservation: int = 0,
    ) -> list[GetResult]:
        if into is not None:
            op = self.get_many_async(ns, keys, into, timeout=timeout, reservation=reservation)
            return op.result()
        until = time.monotonic() + timeout
        first = max(1, min(_FIRST_READ, _FIRST_READ_TOTAL // max(1, len(keys))))
        results = self._get_bytes(ns, keys, [first] * len(keys), reservation, timeout)
        again = [i for i, r in enumerate(results) if r.code == Code.BUFFER_TOO_SMALL]
        if again:
            left = max(0.0, until - time.monotonic())
            longer = self._get_bytes(
                ns, [keys[i] for i in again], [results[i].size for i in again], reservation, left
            )
            for i, result in zip(again, longer):
                results[i] = result
        return results

    def get_many_async(
        self,
        ns: Namespace,
        keys: Sequence[bytes],
        into: Sequence[_core.Buffers],
        *,
        timeout: float = 5.0,
        reservation: int = 0,
    ) -> Op[list[GetResult]]:
        if len(keys) != len(into):
            raise ValueError(f"{len(keys)} keys, but {len(into)} buffers")
        items = [(ns, key, buffer) for key, buffer in zip(keys, into)]
        return Op(self._core.fetch(items, reservation, 0, False, timeout), _get_results)

    def _get_bytes(
        self,
        ns: Namespace,
        keys: Sequence[bytes],
        sizes: Sequence[int],
        reservation: int,
        timeout: float,
    ) -> list[GetResult]:
        targets = [_core.BytesTarget(size) for size in sizes]
        op = self.get_many_async(ns, keys, targets, timeout=timeout, reservation=reservation)
        try:
            results = op.result()
        finally:
            op.cancel()  # A signal may have ended the wait.
        return [
            result._replace(data=target.take(result.size)) if result.code == Code.OK else result
            for result, target in zip(results, targets)
        ]

    # --- Retention: one code a key ---

    def touch(
        self, ns: Namespace, keys: bytes | Sequence[bytes], timeout: float = 1.0
    ) -> list[Code]:
        """Marks chunks as used just now, in prompt order, up to the first that is missing."""
        return self.touch_async(ns, keys, timeout).result()

    def touch_async(
        self, ns: Namespace, keys: bytes | Sequence[bytes], timeout: float = 1.0
    ) -> Op[list[Code]]:
        return Op(self._core.touch(ns, _key_list(keys), timeout), _codes)

    def pin(
        self, ns: Namespace, keys: bytes | Sequence[bytes], ttl: float, timeout: float = 1.0
    ) -> list[Code]:
        """Keeps chunks from being evicted for ``ttl`` seconds; 0 unpins them."""
        return self.pin_async(ns, keys, ttl, timeout).result()

    def pin_async(
        self, ns: Namespace, keys: bytes | Sequence[bytes], ttl: float, timeout: float = 1.0
    ) -> Op[list[Code]]:
        return Op(self._core.pin(ns, _key_list(keys), ttl, timeout), _codes)

    def drop(
        self, ns: Namespace, keys: bytes | Sequence[bytes], timeout: float = 1.0
    ) -> list[Code]:
        """Removes chunks."""
        return self.drop_async(ns, keys, timeout).result()

    def drop_async(
        self, ns: Namespace, keys: bytes | Sequence[bytes], timeout: float = 1.0
    ) -> Op[list[Code]]:
        return Op(self._core.drop(ns, _key_list(keys), timeout), _codes)


# A thread that waits in here must not outlive the interpreter.
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for client in list(_clients):
        client.close()


def _key_list(keys: bytes | Sequence[bytes]) -> list[bytes]:
    return [keys] if isinstance(keys, bytes) else list(keys)


def _raise_unless_ok(core: _core.Operation) -> None:
    code, message = core.status()
    if code != Code.OK:
        raise make_error(code, message)


def _nothing(core: _core.Operation) -> None:
    _raise_unless_ok(core)


def _codes(core: _core.Operation) -> list[Code]:
    return [to_code(number) for number in core.codes()]


def _one(core: _core.Operation, accept: Callable[[int], bool]) -> tuple[int, int]:
    items = core.items()
    if not items:
        _raise_unless_ok(core)
    code, message, size, _ = items[0]
    if not accept(code):
        raise make_error(code, message)
    return code, size


def _stored(core: _core.Operation) -> Code:
    return to_code(_one(core, lambda code: code in (Code.OK, Code.ALREADY_EXISTS))[0])


def _fetched(core: _core.Operation) -> int:
    return _one(core, lambda code: code == Code.OK)[1]


def _get_results(core: _core.Operation) -> list[GetResult]:
    return [
        GetResult(to_code(code), size, None, message) for code, message, size, _ in core.items()
    ]


def _match_result(core: _core.Operation) -> MatchResult:
    code, message = core.status()
    if code != Code.OK:
        return MatchResult(0, 0, 0, to_code(code), message, [])
    chunks, size, reservation, details = core.match()
    return MatchResult(
        chunks,
        size,
        reservation,
        Code.OK,
        message,
        [MatchDetail(group, chunk, stored, _TIERS[tier]) for stored, group, chunk, tier in details],
    )


def _stat(core: _core.Operation) -> Stat:
    _raise_unless_ok(core)
    stored_bytes, token_count, pins, children, idle_ms, tier = core.stat()
    return Stat(stored_bytes, token_count, pins, children, idle_ms / 1000, _TIERS[tier])
