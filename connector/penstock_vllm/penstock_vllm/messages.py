"""What the two halves of the connector tell each other, once a step. Plain data: it is pickled.

The scheduler's half sends a StepPlan to every worker; each worker answers with a WorkerReport, and
the reports of all ranks are merged before the scheduler reads them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple


class Group(NamedTuple):
    """A KV group of the model, as far as chunks are concerned."""

    index: int
    window_tokens: int
    """0: full attention. Else how many tokens before the end of a prefix are needed."""
    block_tokens: int
    layer_names: tuple[str, ...]
    kind: str
    """For the namespace: "full", "sliding:512", ..."""


class Shape(NamedTuple):
    """How the engine cuts a sequence into chunks."""

    chunk_tokens: int
    hash_tokens: int
    """Tokens that one of the engine's block hashes covers."""
    groups: tuple[Group, ...]

    def blocks_per_chunk(self, group: int) -> int:
        return self.chunk_tokens // self.groups[group].block_tokens

    def window_chunks(self, group: int) -> int:
        """Chunks before the end of a prefix that the group needs; 0: all of them."""
        return -(-self.groups[group].window_tokens // self.chunk_tokens)


class LoadItem(NamedTuple):
    group: int
    identity: bytes
    blocks: list[int]
    """SKIPPED for blocks that must not be written: already there, or outside the window."""


class StoreItem(NamedTuple):
    group: int
    identity: bytes
    parent: bytes | None
    token_count: int
    blocks: list[int]


SKIPPED = -1


@dataclasses.dataclass
class LoadJob:
    request_id: str
    reservation: int
    timeout: float
    items: list[LoadItem]


@dataclasses.dataclass
class StoreJob:
    job_id: int
    items: list[StoreItem]


@dataclasses.dataclass
class StepPlan:
    """From the scheduler to every worker, once a step."""

    # (pp_rank, tp_rank) -> for each group, the fields of its NamespaceDescriptor. Sent before the
    # first job, and again whenever they change.
    namespaces: dict[tuple[int, int], list[dict[str, Any]]] | None = None
    loads: list[LoadJob] = dataclasses.field(default_factory=list)
    stores: list[StoreJob] = dataclasses.field(default_factory=list)
    # Of this plan or an earlier one. They are reported as failed, even where all bytes came.
    cancelled_loads: list[str] = dataclasses.field(default_factory=list)
    cancelled_stores: list[int] = dataclasses.field(default_factory=list)
    scheduled_tokens: int = 0


@dataclasses.dataclass
class StoreOutcome:
    """Of one store job; counts chunks, over the ranks that have reported."""

    ranks: int = 0
    stored: int = 0
    existed: int = 0
    failed: int = 0
    bytes: int = 0

    def add(self, other: StoreOutcome) -> None:
        self.ranks += other.ranks
        self.stored += other.stored
        self.existed += other.existed
        self.failed += other.failed
        self.bytes += other.bytes


class LoadTime(NamedTuple):
    """Of a load that went well."""

    bytes: int
    seconds: float
    exact: bool = True
    """False: it was over at some time of a forward pass, and may have taken much less."""


@dataclasses.dataclass
class WorkerReport:
    """From the workers to the scheduler, when there is something to say."""

    stores: dict[int, StoreOutcome] = dataclasses.field(default_factory=dict)
    loads: list[LoadTime] = dataclasses.field(default_factory=list)
    # (tokens, seconds) of forward passes.
    prefills: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    # request id -> name of the worst status.
    failed_loads: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.stores or self.loads or self.prefills or self.failed_loads)

    def merge(self, other: WorkerReport) -> WorkerReport:
        for job_id, outcome in other.stores.items():
            self.stores.setdefault(job_id, StoreOutcome()).add(outcome)
        self.loads += other.loads
        self.prefills += other.prefills
        self.failed_loads.update(other.failed_loads)
        return self


class GroupFacts(NamedTuple):
    """What a worker knows about a group once its KV memory exists."""

    layer_names: tuple[str, ...]
    kv_dtype: str
    geometry: str
    """Digest of shapes, strides and order of the layers' pages."""
    page_kind: str
    """Who wrote the pages: the attention backend, and the instruction set it packs them for."""
    block_bytes: int


@dataclasses.dataclass(frozen=True)
class WorkerFacts:
    """From each worker to the scheduler at start-up."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    dcp_rank: int
    dcp_size: int
    layout: str
    groups: tuple[GroupFacts, ...]
    # Why this worker's KV memory cannot be stored; empty when it can.
    refusal: str = ""
