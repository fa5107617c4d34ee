"""A stand-in for the client and the page store of the penstock package, with faults on demand.

For tests of the connector's own decisions: it can be away, slow, or lose things exactly when a test
says so, which a real daemon cannot. What the real one does is tested with the real one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock import (
    SKIPPED_BLOCK,
    Code,
    Disconnected,
    MatchGroup,
    MatchResult,
    NamespaceDescriptor,
    PageChunk,
    PageView,
)


class Daemon:
    """What is stored, and how the daemon behaves. One for each test."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, list[bytes]] = {}
        self.parents: dict[bytes, bytes | None] = {}
        self.up = True
        self.incarnation = 1
        # Called with the operation's name when one starts: how many polls until it is done, or
        # None for never.
        self.delay: Callable[[str], int | None] = lambda name: 0
        # Called with (name, key) for each chunk: a code instead of what would be.
        self.fault: Callable[[str, bytes], Code | None] = lambda name, key: None
        self.reservations: set[int] = set()
        self.next_reservation = 1
        self.log: list[str] = []

    def kill(self) -> None:
        self.up = False
        self.chunks.clear()
        self.reservations.clear()

    def restart(self) -> None:
        self.up = True
        self.incarnation += 1


daemon = Daemon()


def reset() -> Daemon:
    global daemon
    daemon = Daemon()
    return daemon


class Op:
    def __init__(
        self,
        name: str,
        run: Callable[[], Any],
        cancelled: Callable[[], Any],
        gone: Callable[[], Any],
    ) -> None:
        self._daemon = daemon
        self._incarnation = daemon.incarnation
        self._left = daemon.delay(name)
        self._run, self._cancelled, self._gone = run, cancelled, gone
        self._result: tuple[Any] | None = None
        daemon.log.append(name)

    def done(self) -> bool:
        if self._result is not None:
            return True
        if not self._daemon.up or self._daemon.incarnation != self._incarnation:
            self._result = (self._gone(),)
        elif self._left is not None and self._left <= 0:
            self._result = (self._run(),)
        elif self._left is not None:
            self._left -= 1
        return self._result is not None

    def wait(self, timeout: float | None = None) -> bool:
        return self.done()

    def result(self, timeout: float | None = None) -> Any:
        assert self._result is not None, "the connector must not block on a result"
        if isinstance(self._result[0], Exception):
            raise self._result[0]
        return self._result[0]

    def cancel(self) -> None:
        if self._result is None:
            self._result = (self._cancelled(),)


class PageLayout(NamedTuple):
    chunk_bytes: int


def _match(groups: list[MatchGroup]) -> int:
    longest = min(len(group.keys) for group in groups)
    for length in range(longest, 0, -1):
        if all(
            key in daemon.chunks
            for group in groups
            for key in group.keys[
                max(0, length - group.window_chunks) if group.window_chunks else 0 : length
            ]
        ):
            return length
    return 0


class Client:
    def __init__(self, address: str = "", **_: Any) -> None:
        self.address = address

    @property
    def connected(self) -> bool:
        return daemon.up

    def namespace(self, descriptor: NamespaceDescriptor) -> bytes:
        return descriptor.fingerprint_bytes()  # Raises what the real one raises.

    def stats(self) -> dict[str, Any]:
        return {"connected": daemon.up, "last_error": "" if daemon.up else "connection refused"}

    def match(self, groups: Any, reserve_ttl: float | None = None, timeout: float = 1.0) -> Op:
        wanted = list(groups)
        large = len(wanted) > 64 or sum(len(group.keys) for group in wanted) > 16384

        def run() -> MatchResult:
            if large:
                return MatchResult(0, 0, 0, Code.TOO_LARGE, "", [])
            length = _match(wanted)
            reservation = 0
            if length and reserve_ttl:
                reservation = daemon.next_reservation
                daemon.next_reservation += 1
                daemon.reservations.add(reservation)
            return MatchResult(length, 0, reservation, Code.OK, "", [])

        return Op(
            "match",
            run,
            lambda: MatchResult(0, 0, 0, Code.CANCELLED, "", []),
            lambda: MatchResult(0, 0, 0, Code.DISCONNECTED, "", []),
        )

    def ping_async(self, timeout: float = 1.0) -> Op:
        gone = Disconnected(Code.DISCONNECTED)
        return Op("ping", lambda: None, lambda: gone, lambda: gone)

    def release(self, reservation: int, timeout: float = 1.0) -> None:
        daemon.reservations.discard(reservation)

    def close(self) -> None:
        pass


class PageStore:
    def __init__(self, client: Client, *, null_block: int | None = None) -> None:
        self._null = null_block
        self._storages: list[tuple[int, int]] = []
        self._groups: dict[int, tuple[int, list[PageView], bytes]] = {}
        self._next_group = 0
        self.closed = False

    def register_storage(self, data_ptr: int, nbytes: int, owner: Any = None) -> int:
        if (data_ptr, nbytes) not in self._storages:
            self._storages.append((data_ptr, nbytes))
        return self._storages.index((data_ptr, nbytes))

    def add_group(self, ns: bytes, blocks_per_chunk: int, views: Any) -> int:
        self._groups[self._next_group] = (blocks_per_chunk, list(views), ns)
        self._next_group += 1
        return self._next_group - 1

    def remove_group(self, group: int) -> None:
        del self._groups[group]

    def layout(self, group: int) -> PageLayout:
        blocks, views, _ = self._groups[group]
        return PageLayout(blocks * sum(view.page_bytes for view in views))

    def load(self, chunks: Any, reservation: int = 0, timeout: float = 5.0) -> Op:
        return self._start("load", list(chunks), self._load_one)

    def store(self, chunks: Any, timeout: float = 5.0) -> Op:
        return self._start("store", list(chunks), self._store_one)

    def close(self) -> None:
        self.closed = True

    def _start(self, name: str, chunks: list[PageChunk], one: Callable[..., Code]) -> Op:
        # As they are now: groups may be removed while their operations go on.
        views = [self._groups[chunk.group][1] for chunk in chunks]
        for chunk in chunks:
            blocks, *_ = self._groups[chunk.group]
            assert len(chunk.blocks) == blocks, "a chunk with the wrong number of blocks"
            assert self._null not in chunk.blocks, "the null block is in a transfer"
            assert name == "load" or all(b > 0 for b in chunk.blocks), "a hole in a store"
        return Op(
            name,
            lambda: [one(chunk, of_one) for chunk, of_one in zip(chunks, views, strict=True)],
            lambda: [Code.CANCELLED] * len(chunks),
            lambda: [Code.DISCONNECTED] * len(chunks),
        )

    def _address(self, view: PageView, block: int) -> int:
        start, size = self._storages[view.storage]
        offset = view.offset + block * view.block_stride
        assert offset >= 0 and offset + view.page_bytes <= size, "a page outside its storage"
        return start + offset

    def _load_one(self, chunk: PageChunk, views: list[PageView]) -> Code:
        code = daemon.fault("load", chunk.key)
        if code is not None:
            return code
        if chunk.key not in daemon.chunks:
            return Code.MISS
        pages = iter(daemon.chunks[chunk.key])
        for view in views:
            for block in chunk.blocks:
                page = next(pages)
                if block != SKIPPED_BLOCK:
                    ctypes.memmove(self._address(view, block), page, view.page_bytes)
        return Code.OK

    def _store_one(self, chunk: PageChunk, views: list[PageView]) -> Code:
        code = daemon.fault("store", chunk.key)
        if code is not None:
            return code
        if chunk.key in daemon.chunks:
            return Code.ALREADY_EXISTS
        daemon.chunks[chunk.key] = [
            ctypes.string_at(self._address(view, block), view.page_bytes)
            for view in views
            for block in chunk.blocks
        ]
        daemon.parents[chunk.key] = chunk.parent
        return Code.OK


def install(patch: Any) -> None:
    """Puts the stand-ins into the penstock package until `patch` (a MonkeyPatch) is undone."""
    patch.setattr("penstock.Client", Client)
    patch.setattr("penstock.PageStore", PageStore)
