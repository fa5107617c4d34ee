"""Chunks between the daemon and an engine's pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from . import _core
from ._client import Client
from ._core import Namespace
from ._operation import Op
from ._status import Code, to_code

SKIPPED_BLOCK: Final[int] = _core.SKIPPED_BLOCK
"""In the block list of a load: this block is not wanted, its bytes go nowhere."""


class PageView(NamedTuple):
    """The pages of one layer as they lie in a storage.

    The page of block ``b`` is ``page_bytes`` bytes at ``offset + b * block_stride``.
    """

    storage: int
    offset: int
    block_stride: int
    page_bytes: int
    layer_index: int


class PageChunk(NamedTuple):
    """One chunk to load or store: as many blocks as the group has in a chunk."""

    group: int
    key: bytes
    blocks: Sequence[int]
    parent: bytes | None = None
    """Store: the key of the chunk before this one, for retention."""
    token_count: int = 0
    """Store: for people who look at the chunk."""


class PageLayout(NamedTuple):
    """What a chunk of a group looks like."""

    chunk_bytes: int
    block_bytes: int
    block_limit: int
    """Block ids are below this."""
    tag: int
    """Digest of the layout; chunks stored through another one are not loaded."""


class PageStore:
    """The connector core: moves chunks straight between the daemon and an engine's pages.

    Register every storage once, however many layers and groups look at it, then add the groups.
    Thread-safe. Keeping the engine from reusing blocks before an operation on them is done is the
    caller's part.
    """

    def __init__(self, client: Client, *, null_block: int | None = None) -> None:
        """``null_block``: a block that the engine never fills; loads and stores refuse it."""
        self._core = _core.PageStore(client._core, null_block=null_block)

    def register_storage(self, data_ptr: int, nbytes: int, owner: Any = None) -> int:
        """Makes ``nbytes`` of memory at ``data_ptr`` known and returns the storage's number.

        The memory must stay mapped until close(); ``owner`` is kept alive until then. The same
        range again gives the same number. Raises BadBuffer and InvalidArgument.
        """
        return self._core.register_memory(data_ptr, nbytes, owner)

    def register_buffer(self, buffer: _core.Buffer) -> int:
        """register_storage() for a writable buffer or CPU tensor, which is kept alive."""
        return self._core.register_buffer(buffer)

    def add_group(self, ns: Namespace, blocks_per_chunk: int, views: Iterable[PageView]) -> int:
        """Adds a group of layers whose chunks are in ``ns`` and returns its number.

        The views are in the order in which a chunk holds them. Raises InvalidArgument.
        """
        return self._core.add_group(ns, blocks_per_chunk, list(views))

    def remove_group(self, group: int) -> None:
        """Lets go of a group and its namespace; its number may be given to another one.

        Loads and stores that were started go on. Raises InvalidArgument.
        """
        self._core.remove_group(group)

    def layout(self, group: int) -> PageLayout:
        """What a chunk of the group looks like."""
        return PageLayout(*self._core.layout(group))

    def load(
        self, chunks: Iterable[PageChunk], reservation: int = 0, timeout: float = 5.0
    ) -> Op[list[Code]]:
        """Scatters chunks from the daemon into blocks.

        The result is one code a chunk, in order, whatever happens; it never raises. After anything
        but OK the blocks of that chunk hold anything.
        """
        return Op(self._core.load(list(chunks), reservation, timeout), _codes)

    def store(self, chunks: Iterable[PageChunk], timeout: float = 5.0) -> Op[list[Code]]:
        """Gathers chunks from blocks into the daemon. The result is as for load()."""
        return Op(self._core.store(list(chunks), timeout), _codes)

    def stats(self) -> dict[str, Any]:
        """``unregistered_storages``: those that the system refused to lock, and why the last was."""
        count, error = self._core.unregistered_storages()
        return {"unregistered_storages": count, "last_registration_error": error if count else ""}

    def close(self) -> None:
        """Cancels what is in flight and waits for it; then nothing touches the storages."""
        self._core.close()

    def __enter__(self) -> PageStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _codes(core: _core.Operation) -> list[Code]:
    return [to_code(number) for number in core.codes()]
