"""The worker's half: moves chunks between the engine's pages and the daemon as the plans say.

The bytes move on the client's own threads. Here operations are started and asked whether they are
done; the only wait is a bounded one in steps that have nothing to compute, where the engine would
otherwise spin.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import penstock

from .messages import (
    Group,
    GroupFacts,
    LoadJob,
    LoadTime,
    Shape,
    StepPlan,
    StoreJob,
    StoreOutcome,
    WorkerFacts,
    WorkerReport,
)
from .pages import LayerPages, LayoutRefused, geometry_digest, group_pages

# In a step without a forward pass, waiting for transfers costs nobody anything: the engine itself
# sleeps a millisecond after such a step.
_IDLE_WAIT_S = 0.002
# Steps with fewer tokens say nothing about the cost of prefill.
_PREFILL_TOKENS = 32


@dataclasses.dataclass
class _Load:
    op: Any
    started: float
    pending: float  # When it was last known not to be over.
    bytes: int
    cancelled: bool = False


@dataclasses.dataclass
class _Store:
    op: Any
    sizes: list[int]


class WorkerSide:
    """Not thread-safe: used by the worker's thread alone."""

    def __init__(
        self,
        shape: Shape,
        client: Any,
        *,
        ranks: dict[str, int],
        store_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ranks`: tp_rank, tp_size, pp_rank, pp_size, dcp_rank, dcp_size."""
        self._shape = shape
        self._client = client
        self._ranks = ranks
        self._store_timeout = store_timeout
        self._clock = clock
        self._pages: Any = None
        self._group_views: list[list[Any]] = []
        self._groups: list[tuple[int, Any]] = []  # Of the page store, once namespaces are known.
        self._chunk_bytes: list[int] = []
        self._loads: dict[str, _Load] = {}
        self._stores: dict[int, _Store] = {}
        self._stores_to_start: list[StoreJob] = []  # When the step's forward pass is over.
        self._newest_store = 0
        self._report = WorkerReport()
        self._settled: set[str] = set()
        self._failed: set[str] = set()
        self._computing = False  # Whether the step has a forward pass.
        self._forward_began: float | None = None
        self.counters: Counter[str] = Counter()
        self.facts: WorkerFacts | None = None

    # --- Start-up --------------------------------------------------------------------------------

    def register(
        self,
        tensors: Mapping[str, Any],
        num_blocks: int,
        layout: str,
        layer_index: Callable[[str], int],
        page_kind: Callable[[str], str],
    ) -> None:
        """Takes the engine's KV memory: each storage is registered once, however many views."""
        self._pages = penstock.PageStore(self._client, null_block=0)
        facts: list[GroupFacts] = []
        refusal = ""
        try:
            for group in self._shape.groups:
                facts.append(self._add_views(group, tensors, num_blocks, layer_index, page_kind))
        except (LayoutRefused, penstock.PenstockError) as error:
            refusal = str(error)
            self._close_pages()
        self.facts = WorkerFacts(**self._ranks, layout=layout, groups=tuple(facts), refusal=refusal)

    def _add_views(
        self,
        group: Group,
        tensors: Mapping[str, Any],
        num_blocks: int,
        layer_index: Callable[[str], int],
        page_kind: Callable[[str], str],
    ) -> GroupFacts:
        if not group.layer_names:
            raise LayoutRefused(f"this rank has no layer of KV group {group.index}")
        names = sorted(group.layer_names, key=layer_index)
        views = []
        for position, pages in group_pages(names, tensors, num_blocks):
            storage = self._pages.register_storage(
                pages.data_ptr, pages.storage_bytes, tensors[names[position]].untyped_storage()
            )
            views.append(_view(storage, pages, layer_index(names[position])))
        self._group_views.append(views)
        return GroupFacts(
            layer_names=tuple(names),
            kv_dtype=str(tensors[names[0]].dtype).removeprefix("torch."),
            geometry=geometry_digest(names, tensors),
            page_kind=",".join(sorted({page_kind(name) for name in names})),
            block_bytes=sum(view.page_bytes for view in views),
        )

    def _set_namespaces(self, descriptors: list[dict[str, Any]]) -> None:
        if self._pages is None:
            return
        # Namespaces that nobody uses any more would fill up the daemon's table.
        for number, _ in self._groups:
            self._pages.remove_group(number)
        self._groups.clear()
        self._chunk_bytes.clear()
        for group, fields in zip(self._shape.groups, descriptors, strict=True):
            ns = self._client.namespace(penstock.NamespaceDescriptor(**fields))
            number = self._pages.add_group(
                ns, self._shape.blocks_per_chunk(group.index), self._group_views[group.index]
            )
            self._groups.append((number, ns))
            self._chunk_bytes.append(self._pages.layout(number).chunk_bytes)

    # --- One step --------------------------------------------------------------------------------

    def begin_step(self, plan: StepPlan) -> None:
        """Before the forward pass. Loads start at once: their blocks are nobody else's."""
        # The engine does not always call end_step(): with speculation, only in the last stage of a
        # pipeline. What the pass before computed is complete by now in any case.
        self._start_stores()
        self._forward_began = None
        self._stores_to_start = list(plan.stores)
        self._computing = plan.scheduled_tokens > 0
        if plan.namespaces is not None:
            self._set_namespaces(plan.namespaces[self._ranks["pp_rank"], self._ranks["tp_rank"]])
        for job_id in plan.cancelled_stores:
            if job_id in self._stores:
                self._stores[job_id].op.cancel()
            elif job_id > self._newest_store:  # It never came here, and would be waited for.
                self._report.stores[job_id] = StoreOutcome(ranks=1)
        for request_id in plan.cancelled_loads:
            if request_id in self._loads:
                self._loads[request_id].cancelled = True
                self._loads[request_id].op.cancel()
        for load in plan.loads:
            if load.request_id in plan.cancelled_loads:
                self._end_load(load.request_id, "cancelled")
            else:
                self._start_load(load)
        if plan.scheduled_tokens >= _PREFILL_TOKENS:
            self._forward_began = self._clock()

    def end_step(self, plan: StepPlan) -> None:
        """After the forward pass: what it computed may be stored now."""
        if self._forward_began is not None:
            seconds = self._clock() - self._forward_began
            self._report.prefills.append((plan.scheduled_tokens, seconds))
            self._forward_began = None
        self._start_stores()
        if plan.scheduled_tokens == 0:
            self._wait_for_one()

    def take_finished(self) -> tuple[set[str], set[str]]:
        """(requests whose load is over, those of them whose load failed), each told once."""
        for request_id, load in list(self._loads.items()):
            if load.op.done():
                del self._loads[request_id]
                self._settle_load(request_id, load)
            else:
                load.pending = self._clock()
        finished, failed = self._settled, self._failed
        self._settled, self._failed = set(), set()
        return finished, failed

    def take_report(self) -> WorkerReport | None:
        for job_id in [j for j, store in self._stores.items() if store.op.done()]:
            self._settle_store(job_id, self._stores.pop(job_id))
        if self._report.empty:
            return None
        report, self._report = self._report, WorkerReport()
        return report

    def shutdown(self) -> None:
        """Returns when nothing touches the engine's memory any more."""
        for pending in [*self._loads.values(), *self._stores.values()]:
            pending.op.cancel()
        self._loads.clear()
        self._stores.clear()
        self._stores_to_start.clear()
        self._close_pages()

    # --- Parts -----------------------------------------------------------------------------------

    def _close_pages(self) -> None:
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def _chunk(
        self, group: int, identity: bytes, blocks: list[int], parent: bytes | None, tokens: int
    ) -> Any:
        number, ns = self._groups[group]
        return penstock.PageChunk(
            number,
            penstock.prefix_key(ns, None, identity),
            blocks,
            penstock.prefix_key(ns, None, parent) if parent is not None else None,
            tokens,
        )

    def _start_load(self, job: LoadJob) -> None:
        if self._pages is None or not self._groups:
            self._end_load(job.request_id, "not_ready")
            return
        chunks = [self._chunk(i.group, i.identity, i.blocks, None, 0) for i in job.items]
        started = self._clock()
        op = self._pages.load(chunks, reservation=job.reservation, timeout=job.timeout)
        size = sum(self._chunk_bytes[item.group] for item in job.items)
        self._loads[job.request_id] = _Load(op, started, started, size)

    def _settle_load(self, request_id: str, load: _Load) -> None:
        codes = load.op.result()
        bad = [code for code in codes if code != penstock.Code.OK]
        if bad:
            self._end_load(request_id, max(bad).name.lower())
            return
        if load.cancelled:  # All bytes came before the cancellation, but nobody may use them.
            self._end_load(request_id, "cancelled")
            return
        # When it was over is not known, only that it was in the step. In a step without a forward
        # pass that is no matter; one with a pass may be much longer than the load.
        now = self._clock()
        exact = not self._computing or now - load.pending <= load.pending - load.started
        self._report.loads.append(LoadTime(load.bytes, now - load.started, exact))
        self._settled.add(request_id)

    def _end_load(self, request_id: str, why: str) -> None:
        self._report.failed_loads[request_id] = why
        self._failed.add(request_id)
        self._settled.add(request_id)

    def _start_stores(self) -> None:
        jobs, self._stores_to_start = self._stores_to_start, []
        for job in jobs:
            self._newest_store = job.job_id
            self._start_store(job)

    def _start_store(self, job: StoreJob) -> None:
        if self._pages is None or not self._groups:
            self._report.stores[job.job_id] = StoreOutcome(ranks=1, failed=len(job.items))
            return
        chunks = [
            self._chunk(i.group, i.identity, i.blocks, i.parent, i.token_count) for i in job.items
        ]
        op = self._pages.store(chunks, timeout=self._store_timeout)
        self._stores[job.job_id] = _Store(op, [self._chunk_bytes[i.group] for i in job.items])

    def _settle_store(self, job_id: int, store: _Store) -> None:
        outcome = StoreOutcome(ranks=1)
        for code, size in zip(store.op.result(), store.sizes, strict=True):
            if code == penstock.Code.OK:
                outcome.stored += 1
                outcome.bytes += size
            elif code == penstock.Code.ALREADY_EXISTS:
                outcome.existed += 1
            else:
                outcome.failed += 1
                self.counters[f"store_failed_{code.name.lower()}"] += 1
        self._report.stores[job_id] = outcome

    def _wait_for_one(self) -> None:
        """Lets a transfer go on for a moment, where the engine has nothing else to do."""
        for pending in [*self._loads.values(), *self._stores.values()]:
            if not pending.op.done():
                pending.op.wait(_IDLE_WAIT_S)
                return


def _view(storage: int, pages: LayerPages, layer: int) -> Any:
    return penstock.PageView(storage, pages.offset, pages.block_stride, pages.page_bytes, layer)
