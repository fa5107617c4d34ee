"""The scheduler's half: what to load for a request, what to store of it, and when.

Knows the engine's requests by the few attributes it reads (block_hashes, num_tokens, ...) and no
engine module, so that its rules can be tested without an engine. It never blocks for longer than
the allowance of lookup.py, and does nothing at all while the daemon is away.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import penstock

from .config import ConnectorConfig
from .estimate import LoadPlanner
from .lookup import Lookup, LookupService, check_fits
from .messages import SKIPPED, LoadItem, LoadJob, Shape, StepPlan, StoreItem, StoreJob, WorkerReport
from .pins import BlockPins

# Stores that the engine is short of blocks for are waited for so long, then given up.
_PATIENCE_FOR_BLOCKS_S = 0.05


@dataclasses.dataclass
class _Request:
    """What the connector remembers of a request."""

    request: Any
    # Tells apart what the engine's block hashes do not; None: this request is left alone.
    suffix: bytes | None
    lookup: Lookup | None = None
    skipped: bool = False  # Counted as not asked about.
    preemptions: int = 0  # When it was asked about.
    # The last answer to the engine: where its own prefix ended, and how far the load goes.
    local_tokens: int = 0
    load_chunks: int = 0
    loading: bool = False
    load_failed: bool = False
    # Chunks [0, stored) are in the daemon or on their way there, as far as is known.
    stored: int = 0
    stored_known: bool = False


class SchedulerSide:
    """Not thread-safe: used by the scheduler's thread alone."""

    def __init__(
        self,
        config: ConnectorConfig,
        shape: Shape,
        client: Any,
        *,
        suffix_of: Callable[[Any], bytes | None],
        volatile_tokens: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`suffix_of(request)`: what its identities end in, None to leave the request alone.
        `volatile_tokens`: at the end of what is computed, that speculation may still rewrite.
        """
        self._config = config
        self._shape = shape
        self._client = client
        self._clock = clock
        self._suffix_of = suffix_of
        self._volatile_tokens = volatile_tokens
        self._chunk_bytes: list[int] = []
        self.counters: Counter[str] = Counter()
        self.lookups = LookupService(config, shape, client, clock, self.counters)
        self.planner = LoadPlanner(
            adapt=config.decline_slow_loads, load_timeout=config.load_timeout_ms / 1000
        )
        self.pins = BlockPins(ranks=1, percent=config.pinned_blocks_percent)
        self._requests: dict[str, _Request] = {}
        self._job_identities: dict[int, list[bytes]] = {}
        self._storing: Counter[bytes] = Counter()  # Identities of chunks on their way out.
        self._cancelled_jobs: set[int] = set()
        self._next_job = 1
        self._plan = StepPlan()

    def set_namespaces(
        self,
        fields: dict[tuple[int, int], list[dict[str, Any]]],
        chunk_bytes: list[int],
    ) -> None:
        """From now on chunks can be named. `fields`: (pp_rank, tp_rank) -> for each group those of
        its NamespaceDescriptor. `chunk_bytes`: for each group, of one rank. Raises IdentityError
        when they are more than a lookup holds."""
        check_fits(len(fields), len(self._shape.groups))
        self._chunk_bytes = chunk_bytes
        self.lookups.set_namespaces(
            [
                [self._client.namespace(penstock.NamespaceDescriptor(**f)) for f in groups]
                for groups in fields.values()
            ]
        )
        self.pins.set_ranks(len(fields))
        self._plan.namespaces = fields

    # --- Loading ---------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        state = _Request(request, self._suffix_of(request))
        self._requests[request.request_id] = state
        if self._may_load(state):
            self._ask(state)

    def matched_tokens(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """Tokens beyond `local_tokens` that the daemon has; (None, False): not known yet.

        The engine may ask again and again, and may not take what it is offered.
        """
        state = self._requests.get(request.request_id)
        if state is None or not self._may_load(state) or state.loading:
            return 0, False
        lookup = self._answer(state)
        if lookup is None:
            return 0, False
        if lookup.chunks is None:
            self.counters["lookup_waits"] += 1
            return None, False
        state.local_tokens = local_tokens
        state.load_chunks = lookup.chunks
        # One token must be left to compute, or there would be nothing to sample from.
        end = min(lookup.chunks * self._shape.chunk_tokens, request.num_tokens - 1)
        tokens = end - local_tokens
        if tokens <= 0 or not self._worth_loading(state, tokens):
            self._give_up_reservation(state)
            return 0, False
        return tokens, True

    def allocated(
        self, request: Any, block_ids: tuple[list[int], ...], external_tokens: int
    ) -> None:
        """The engine took what it was offered and has blocks for it: plans the load."""
        state = self._requests.get(request.request_id)
        if state is None or external_tokens == 0 or state.lookup is None:
            return
        items = self._load_items(state, block_ids)
        tokens = external_tokens
        size = sum(self._chunk_bytes[item.group] for item in items)
        job = LoadJob(
            request.request_id,
            state.lookup.reservation,
            self.planner.deadline(tokens, size),
            items,
        )
        state.loading = True
        self._plan.loads.append(job)
        self.counters["loads"] += 1
        self.counters["load_tokens"] += tokens
        self.counters["load_chunks"] += len(items)

    # --- One step --------------------------------------------------------------------------------

    def build_plan(self, scheduled: Iterable[tuple[str, int]], block_ids: Any) -> StepPlan:
        """What the workers have to do in the step that is about to run.

        `scheduled`: (request id, tokens). `block_ids(request id)`: for each group, the ids of the
        request's blocks from the first on, 0 where there is none.
        """
        self.lookups.mend()
        total = 0
        can_store = self._config.store and self.lookups.usable
        for request_id, tokens in scheduled:
            total += tokens
            state = self._requests.get(request_id)
            if can_store and state is not None and state.suffix is not None:
                self._plan_store(state, tokens, block_ids)
        plan, self._plan = self._plan, StepPlan()
        plan.scheduled_tokens = total
        self.lookups.new_step(busy=total > 0)
        return plan

    def update(
        self,
        report: WorkerReport | None,
        finished_loads: Iterable[str],
        failed_loads: Iterable[str],
    ) -> None:
        """News from the workers."""
        failed = set(failed_loads)
        for request_id in finished_loads:
            self._load_done(request_id, request_id in failed)
        if report is None:
            return
        now = self._clock()
        if report.loads:
            self.lookups.loads_paused.success()
        for load in report.loads:
            self.planner.add_load(load, now)
            self.counters["bytes_loaded"] += load.bytes
            self.counters["load_microseconds"] += int(load.seconds * 1e6)
        for tokens, seconds in report.prefills:
            self.planner.prefill.add(tokens, seconds, now)
        for status in report.failed_loads.values():
            self.counters[f"load_failed_{status}"] += 1
            if status == "deadline_exceeded":
                self.lookups.loads_paused.failure(now)
        for job_id, outcome in report.stores.items():
            self.counters["chunks_stored"] += outcome.stored
            self.counters["chunks_existed"] += outcome.existed
            self.counters["chunks_not_stored"] += outcome.failed
            self.counters["bytes_stored"] += outcome.bytes
            if self.pins.rank_done(job_id, outcome.ranks):
                self._job_done(job_id)

    def request_finished(self, request: Any) -> None:
        """Also for aborted requests. Its blocks may go: pins hold those that are being stored."""
        state = self._requests.pop(request.request_id, None)
        if state is None:
            return
        if state.loading:
            self._cancel_load(request.request_id)
            self.counters["loads_aborted"] += 1
        self.lookups.discard(state.lookup)

    def forget(self) -> None:
        """What is stored must not be read any more: until new namespaces are set, nothing is."""
        self.lookups.set_namespaces([])
        # What is on its way has the old names, and says nothing about chunks with the new ones.
        self._storing.clear()
        self._job_identities.clear()
        for request_id, state in self._requests.items():
            if state.loading:  # It fails, and what it would have loaded is computed.
                self._cancel_load(request_id)
            self.lookups.discard(state.lookup)
            state.lookup = None
            state.suffix = None  # Its blocks may hold some of both.

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way, and nothing is left to tell the workers."""
        plan = self._plan
        return not (
            self.pins.count
            or any(state.loading for state in self._requests.values())
            or plan.loads
            or plan.cancelled_loads
            or plan.cancelled_stores
        )

    @property
    def work_left(self) -> bool:
        """Whether steps are needed although nothing is scheduled: to hear of stores."""
        return self.pins.count > 0

    def blocks_coming_back(self) -> bool:
        """Asked when the engine is out of blocks: True when pinned ones will be back very soon.

        Otherwise gives up the stores that hold them, so that the engine does what it would do
        without a connector.
        """
        # Of the others what is pinned belongs to requests, too: only those can give it back.
        ages = self.pins.holding_back(self._clock())
        if ages and max(ages.values()) < _PATIENCE_FOR_BLOCKS_S:
            return True
        for job_id in ages:
            if job_id not in self._cancelled_jobs:
                self._cancelled_jobs.add(job_id)
                self._plan.cancelled_stores.append(job_id)
                self.counters["stores_given_up"] += 1
        return False

    # --- Parts of loading ------------------------------------------------------------------------

    def _may_load(self, state: _Request) -> bool:
        return (
            self._config.load
            and state.suffix is not None
            and not state.load_failed
            and not state.request.skip_reading_prefix_cache
        )

    def _chunks_known(self, request: Any) -> int:
        """Whole chunks whose tokens are all known."""
        hashed = len(request.block_hashes) * self._shape.hash_tokens
        return min(hashed, request.num_tokens) // self._shape.chunk_tokens

    def _identity(self, state: _Request, chunk: int) -> bytes:
        last = (chunk + 1) * self._shape.chunk_tokens // self._shape.hash_tokens - 1
        assert state.suffix is not None
        return bytes(state.request.block_hashes[last]) + state.suffix

    def _ask(self, state: _Request) -> None:
        chunks = self._chunks_known(state.request)
        state.preemptions = state.request.num_preemptions
        state.lookup = self.lookups.start([self._identity(state, i) for i in range(chunks)])
        if state.lookup is None and chunks > 0 and not state.skipped:
            state.skipped = True
            self.counters["lookups_skipped"] += 1

    def _answer(self, state: _Request) -> Lookup | None:
        """The state's lookup, asked again where the last answer is out of date."""
        lookup = state.lookup
        if lookup is not None and lookup.chunks is not None:
            # What a preempted request computed before is stored by now, perhaps.
            grown = state.preemptions != state.request.num_preemptions
            if grown or (lookup.chunks > 0 and self.lookups.stale(lookup)):
                self.lookups.discard(lookup)
                lookup = state.lookup = None
                self._ask(state)
        elif lookup is None and self._chunks_known(state.request) > 0:
            self._ask(state)
        lookup = state.lookup
        if lookup is not None and self.lookups.poll(lookup, wait=True):
            self._note_answer(state, lookup)
        return lookup

    @staticmethod
    def _note_answer(state: _Request, lookup: Lookup) -> None:
        if not state.stored_known and lookup.code == penstock.Code.OK:
            state.stored_known = True
            state.stored = max(state.stored, lookup.chunks or 0)

    def _worth_loading(self, state: _Request, tokens: int) -> bool:
        if tokens < self._config.min_load_tokens:
            return False
        size = sum(
            self._chunk_bytes[group.index] * len(self._needed_chunks(state, group.index))
            for group in self._shape.groups
        )
        now = self._clock()
        paused = self.lookups.loads_paused.active(now)
        if not paused and self.planner.worth(tokens, size, now):
            return True
        self.counters["loads_declined"] += 1
        return False

    def _needed_chunks(self, state: _Request, group: int) -> range:
        """Chunks that a load needs in a group, those of the engine's own prefix left out."""
        first = state.local_tokens // self._shape.chunk_tokens
        window = self._shape.window_chunks(group)
        if window:
            first = max(first, state.load_chunks - window)
        return range(first, max(first, state.load_chunks))

    def _load_items(self, state: _Request, block_ids: tuple[list[int], ...]) -> list[LoadItem]:
        items = []
        for group in self._shape.groups:
            per_chunk = self._shape.blocks_per_chunk(group.index)
            local_blocks = -(-state.local_tokens // group.block_tokens)
            ids = block_ids[group.index]
            for chunk in self._needed_chunks(state, group.index):
                # The engine's own blocks may be shared, the null block (0) is nobody's.
                blocks = [
                    ids[i] if i >= local_blocks and i < len(ids) and ids[i] != 0 else SKIPPED
                    for i in range(chunk * per_chunk, (chunk + 1) * per_chunk)
                ]
                if any(block != SKIPPED for block in blocks):
                    items.append(LoadItem(group.index, self._identity(state, chunk), blocks))
        return items

    def _cancel_load(self, request_id: str) -> None:
        """The engine keeps the blocks until the worker reports that nothing writes to them."""
        if request_id not in self._plan.cancelled_loads:
            self._plan.cancelled_loads.append(request_id)

    def _give_up_reservation(self, state: _Request) -> None:
        if state.lookup is not None:
            self.lookups.release(state.lookup.reservation)
            state.lookup.reservation = 0

    def _load_done(self, request_id: str, failed: bool) -> None:
        state = self._requests.get(request_id)
        if state is None or not state.loading:
            return
        state.loading = False
        self._give_up_reservation(state)
        if failed:
            # Never again for this request: what failed now would fail again, without end. What
            # the daemon really has is unknown, so everything is offered to it.
            state.load_failed = True
            state.stored = 0
            self.counters["loads_failed"] += 1
        else:
            self.counters["loads_done"] += 1
            end = state.load_chunks * self._shape.chunk_tokens
            tokens = min(end, state.request.num_tokens - 1) - state.local_tokens
            self.counters["tokens_pulled"] += tokens
            # Of all ranks, as stored chunks and bytes of both ways are counted.
            self.counters["chunks_pulled"] += self.pins.ranks * sum(
                len(self._needed_chunks(state, group.index)) for group in self._shape.groups
            )

    # --- Parts of storing ------------------------------------------------------------------------

    def _plan_store(self, state: _Request, tokens: int, block_ids: Any) -> None:
        """Stores the chunks that the step completes, and earlier ones that are still missing."""
        request = state.request
        if state.lookup is not None and self.lookups.poll(state.lookup, wait=False):
            self._note_answer(state, state.lookup)
        # Tokens that are known and whose KV the step's end finds in the blocks: speculative ones,
        # which the next step may overwrite, have positions from num_tokens on.
        end = min(request.num_computed_tokens + tokens, request.num_tokens)
        end -= self._volatile_tokens
        if not self._config.store_decode:
            end = min(end, request.num_prompt_tokens)
        last = min(end // self._shape.chunk_tokens, self._chunks_known(request))
        if last <= state.stored:
            return
        ids = block_ids(request.request_id)
        if ids is None:
            return
        items: list[StoreItem] = []
        pinned: list[int] = []
        identities: list[bytes] = []
        while state.stored < last:
            identity = self._identity(state, state.stored)
            if not self._storing[identity]:
                chunk_items = self._store_items(state, state.stored, identity, ids)
                blocks = [block for item in chunk_items for block in item.blocks]
                if len(pinned) + len(blocks) > self.pins.room:
                    self.counters["store_waits"] += 1
                    break
                items += chunk_items
                pinned += blocks
                identities.append(identity)
            state.stored += 1
        if items:
            self._add_store_job(items, pinned, identities)

    def _store_items(
        self, state: _Request, chunk: int, identity: bytes, ids: tuple[list[int], ...]
    ) -> list[StoreItem]:
        parent = self._identity(state, chunk - 1) if chunk > 0 else None
        items = []
        for group in self._shape.groups:
            per_chunk = self._shape.blocks_per_chunk(group.index)
            blocks = ids[group.index][chunk * per_chunk : (chunk + 1) * per_chunk]
            if len(blocks) < per_chunk or 0 in blocks:
                continue  # Outside the window already: not there any more.
            items.append(
                StoreItem(
                    group.index,
                    identity,
                    parent if group.window_tokens == 0 else None,
                    self._shape.chunk_tokens,
                    blocks,
                )
            )
        return items

    def _add_store_job(
        self, items: list[StoreItem], pinned: list[int], identities: list[bytes]
    ) -> None:
        job_id = self._next_job
        self._next_job += 1
        self.pins.pin(job_id, pinned, self._clock())
        self._job_identities[job_id] = identities
        self._storing.update(identities)
        self._plan.stores.append(StoreJob(job_id, items))
        self.counters["store_chunks"] += len(items)

    def _job_done(self, job_id: int) -> None:
        self._cancelled_jobs.discard(job_id)
        for identity in self._job_identities.pop(job_id, ()):
            self._storing[identity] -= 1
            if self._storing[identity] <= 0:
                del self._storing[identity]
