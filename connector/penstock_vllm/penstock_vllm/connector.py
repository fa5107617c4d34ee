"""PenstockConnector: what vLLM loads. It translates between the engine and the two halves.

    --kv-transfer-config '{"kv_connector": "PenstockConnector",
                           "kv_connector_module_path": "penstock_vllm",
                           "kv_role": "kv_both",
                           "kv_connector_extra_config": {"url": "unix:///run/penstock.sock"}}'

The scheduler's process has one instance, every worker another; where both are in one process they
share a client. An engine whose KV cannot be stored runs as if no connector were there, and says
why in its log.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import penstock
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from . import engine_0_32 as engine
from .config import ConnectorConfig
from .identity import Background, IdentityError, namespace_fields, request_suffix
from .lookup import check_fits
from .messages import Shape, StepPlan, WorkerFacts, WorkerReport
from .scheduler import SchedulerSide
from .stats import Increases, PenstockPromMetrics, PenstockStats
from .worker import WorkerSide

logger = init_logger("vllm.penstock_vllm")

# Start-up takes longer than reading any weights again; a request should not come before.
_WAIT_FOR_DIGEST_S = 60.0
_DIGEST_CACHE = Path("~/.cache/penstock/digests")


@dataclasses.dataclass
class PenstockMetadata(KVConnectorMetadata):
    plan: StepPlan


@dataclasses.dataclass
class PenstockWorkerMetadata(KVConnectorWorkerMetadata):
    report: WorkerReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> PenstockWorkerMetadata:
        assert isinstance(other, PenstockWorkerMetadata)
        self.report.merge(other.report)
        return self


@dataclasses.dataclass
class PenstockHandshake(KVConnectorHandshakeMetadata):
    facts: WorkerFacts


class _SharedClients:
    """Both halves of one process use one session with the daemon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[tuple[Any, ...], tuple[Any, int]] = {}

    def take(self, config: ConnectorConfig) -> Any:
        key = self._key(config)
        with self._lock:
            client, users = self._clients.get(key, (None, 0))
            if client is None:
                client = penstock.Client(
                    config.url,
                    wire=config.wire,
                    tenant=config.tenant,
                    name=config.name or f"vllm:{os.getpid()}",
                    connect_timeout=config.connect_timeout_ms / 1000,
                )
            self._clients[key] = (client, users + 1)
            return client

    def give_back(self, config: ConnectorConfig) -> None:
        key = self._key(config)
        with self._lock:
            client, users = self._clients.pop(key, (None, 0))
            if users > 1:
                self._clients[key] = (client, users - 1)
                return
        if client is not None:
            client.close()

    @staticmethod
    def _key(config: ConnectorConfig) -> tuple[Any, ...]:
        return (os.getpid(), config.url, config.wire, config.tenant, config.name)


_clients = _SharedClients()


class PenstockConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = ConnectorConfig.parse(self._kv_transfer_config.kv_connector_extra_config)
        self._cache_hit_source = (
            CacheHitSource.HOST
            if self._config.url.startswith("unix:")
            else CacheHitSource.EXTERNAL_UNSPECIFIED
        )
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._client: Any = None
        self._increases = Increases()
        self._workers: list[WorkerFacts] = []
        self._ready = False
        self._refused = False
        self._generation = 0
        self._was_connected: bool | None = None
        try:
            shape = engine.shape_of(kv_cache_config, vllm_config, self._config)
        except (engine.Unsupported, IdentityError) as error:
            self._refuse(str(error))
            return
        self._shape = shape
        self._client = _clients.take(self._config)
        if role == KVConnectorRole.SCHEDULER:
            self._start_scheduler(shape)
        else:
            self._start_worker(shape)

    # --- Worker ----------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if self._worker is None:
            return
        self._worker.register(
            kv_caches,
            self._kv_cache_config.num_blocks,
            str(self._kv_cache_config.kv_cache_layout),
            engine.layer_index,
            lambda name: engine.page_kind(self._vllm_config, name),
        )

    def get_handshake_metadata(self) -> PenstockHandshake | None:
        if self._worker is None or self._worker.facts is None:
            return None
        return PenstockHandshake(self._worker.facts)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            assert isinstance(connector_metadata, PenstockMetadata)
            self._worker.begin_step(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads began when the plan arrived."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Every load is asynchronous: over before its request is scheduled."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Whole chunks are stored at the end of the step."""

    def wait_for_save(self) -> None:
        if self._worker is not None and self.has_connector_metadata():
            metadata = self._get_connector_metadata()
            assert isinstance(metadata, PenstockMetadata)
            self._worker.end_step(metadata.plan)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = KVConnectorTransferResults()
        if self._worker is not None:
            results.finished_recving, results.failed_recving = self._worker.take_finished()
        return results

    def build_connector_worker_meta(self) -> PenstockWorkerMetadata | None:
        report = self._worker.take_report() if self._worker is not None else None
        return PenstockWorkerMetadata(report) if report is not None else None

    # --- Scheduler -------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # A store that is dropped is a miss some day, nothing more.

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        if self._scheduler is None:
            return
        try:
            self._workers = self._facts_of_all(metadata)
            check_fits(len(self._workers), len(self._shape.groups))
        except (engine.Unsupported, IdentityError) as error:
            self._refuse(str(error))
            return
        deadline = time.monotonic() + _WAIT_FOR_DIGEST_S
        while self._digest_pending() and time.monotonic() < deadline:
            self._digests.wait(0.1)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.pins.bind(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        self._get_ready()
        if self._scheduler is not None and not self._refused:
            self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler is not None and num_external_tokens > 0:
            self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> PenstockMetadata:
        self._get_ready()
        if self._scheduler is None:
            return PenstockMetadata(StepPlan())
        state = scheduler_output.kv_connector_block_state
        plan = self._scheduler.build_plan(
            scheduler_output.num_scheduled_tokens.items(),
            state.get_block_ids if state is not None else lambda request_id: None,
        )
        if self._refused:
            self._let_go_when_idle()
        else:
            self._tell_connection()
        return PenstockMetadata(plan)

    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is None:
            return
        metadata = connector_output.kv_connector_worker_meta
        self._scheduler.update(
            metadata.report if metadata is not None else None,
            connector_output.finished_recving or (),
            connector_output.failed_recving or (),
        )
        if self._refused:
            self._let_go_when_idle()

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler is not None:
            self._scheduler.request_finished(request)
        return False, None

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.work_left

    def has_pending_block_frees(self) -> bool:
        return self._scheduler is not None and self._scheduler.blocks_coming_back()

    def reset_cache(self) -> bool:
        """Called after the weights changed in place: nothing from before may be read again.

        The digest of the weights says nothing about them any more, so what is stored from now on
        is named by a random number and is this engine's alone.
        """
        if self._scheduler is not None and not self._refused:
            self._generation = random.SystemRandom().getrandbits(63)
            self._ready = False
            self._scheduler.forget()
        return True

    # --- Both ------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> PenstockStats | None:
        half = self._scheduler or self._worker
        return self._increases.take(half.counters) if half is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> PenstockStats:
        return PenstockStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PenstockPromMetrics:
        return PenstockPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()
        self._worker = self._scheduler = None
        if self._client is not None:
            self._client = None
            _clients.give_back(self._config)

    def debug_state(self) -> dict[str, Any]:
        """For tests and for people at a prompt."""
        if self._scheduler is None or self._refused:
            return {"enabled": False}
        return {
            "enabled": True,
            "ready": self._ready,
            "connected": self._client.connected,
            "chunk_tokens": self._shape.chunk_tokens,
            "windows": [self._shape.window_chunks(g.index) for g in self._shape.groups],
            "pinned_blocks": self._scheduler.pins.count,
            "breaker_closed": self._scheduler.lookups.breaker.closed,
            "counters": dict(self._scheduler.counters),
        }

    # --- Parts -----------------------------------------------------------------------------------

    def _start_scheduler(self, shape: Shape) -> None:
        if engine.recompute_failed_loads(self._vllm_config):
            logger.info(
                "Penstock: this connector's kv_load_failure_policy is now recompute: a failed load "
                "costs time, not the request."
            )
        version = engine.engine_version()
        if not version.startswith(engine.TESTED_VERSIONS):
            logger.warning("Penstock: vLLM %s is not a version it was tested with.", version)
        self._digests = Background(_DIGEST_CACHE.expanduser())
        try:
            self._weight_paths = self._paths_of_weights()
        except IdentityError as error:
            self._refuse(str(error))
            return
        for path in self._weight_paths:
            self._digests.start(path)
        self._scheduler = SchedulerSide(
            self._config,
            shape,
            self._client,
            suffix_of=self._suffix_of,
            volatile_tokens=engine.volatile_tokens(self._vllm_config),
        )

    def _start_worker(self, shape: Shape) -> None:
        policy = engine.outer_failure_policy(self._vllm_config)
        if policy not in (None, "recompute"):
            logger.warning(
                'Penstock: one of several connectors, and kv_load_failure_policy is "%s": set it to '
                '"recompute" in the outer configuration, or a failed load fails its request.',
                policy,
            )
        self._worker = WorkerSide(
            shape,
            self._client,
            ranks=engine.ranks(),
            store_timeout=self._config.store_timeout_ms / 1000,
        )

    def _facts_of_all(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> list[WorkerFacts]:
        """In the order of the ranks. Raises Unsupported where one says nothing, or cannot store:
        a chunk is of use with the parts of all ranks only."""
        facts = []
        for _, handshake in sorted(metadata.items()):
            if not isinstance(handshake, PenstockHandshake):
                raise engine.Unsupported(
                    f"a worker's handshake is a {type(handshake).__name__}: vLLM hands on that of "
                    "the first connector only, so Penstock cannot be combined with one that has its "
                    "own"
                )
            facts.append(handshake.facts)
        for worker in facts:
            if worker.refusal:
                raise engine.Unsupported(worker.refusal)
        ranks = engine.rank_count(self._vllm_config)
        if len(facts) != ranks:
            raise engine.Unsupported(
                f"{len(facts)} of {ranks} workers can store; the logs of the others say why not"
            )
        return facts

    def _paths_of_weights(self) -> list[str]:
        if self._config.model_fingerprint:
            return []
        paths: Iterable[str | None] = (
            engine.weights_path(self._vllm_config),
            engine.draft_path(self._vllm_config),
        )
        return [path for path in paths if path is not None]

    def _digest_pending(self) -> bool:
        try:
            return any(self._digests.get(path) is None for path in self._weight_paths)
        except IdentityError:
            return False

    def _get_ready(self) -> None:
        """Sets the namespaces as soon as all that names the bytes is known."""
        if self._ready or self._refused or self._scheduler is None or not self._workers:
            return
        chain_start = engine.none_hash()
        try:
            digests = [self._digests.get(path) for path in self._weight_paths]
            if chain_start is None or any(digest is None for digest in digests):
                return
            weights = self._config.model_fingerprint or "+".join(d for d in digests if d)
            facts = engine.engine_facts(self._vllm_config, self._config, weights, chain_start)
        except (IdentityError, engine.Unsupported) as error:
            self._refuse(str(error))
            return
        facts = dataclasses.replace(facts, generation=self._generation)
        fields = {
            (worker.pp_rank, worker.tp_rank): namespace_fields(facts, self._shape, worker)
            for worker in self._workers
        }
        chunk_bytes = [
            group.block_bytes * self._shape.blocks_per_chunk(index)
            for index, group in enumerate(self._workers[0].groups)
        ]
        try:
            self._scheduler.set_namespaces(fields, chunk_bytes)
        except (IdentityError, penstock.PenstockError) as error:
            self._refuse(str(error))
            return
        self._ready = True
        logger.info(
            "Penstock: ready; %d tokens a chunk, %d KV groups, %d bytes a chunk in all, model %s",
            self._shape.chunk_tokens,
            len(self._shape.groups),
            sum(chunk_bytes),
            weights[:16],
        )

    def _suffix_of(self, request: Any) -> bytes | None:
        if engine.may_have_media(request) and not self._config.trust_media_ids:
            # The block hashes hold a name of each image, which may be one that the client chose.
            return None
        adapter = engine.adapter_of(request)
        digest = None
        if adapter is not None:
            if not self._config.trust_adapter_files or engine.replaces_adapter(request):
                # The engine reads the files when it likes, before the adapter's first request and
                # again after it had no room for it: nobody can tell which bytes it has.
                return None
            try:
                digest = self._digests.adapter(adapter[1])
            except IdentityError as error:
                logger.info_once("Penstock: adapter %s is not shared: %s", adapter[0], str(error))
                return None
            if digest is None:
                return None  # Still being read: this request goes without.
        return request_suffix(adapter, digest, request.cache_salt)

    def _refuse(self, why: str) -> None:
        logger.warning("Penstock: nothing is stored or loaded: %s", why)
        self._refused = True
        if self._scheduler is not None:
            self._scheduler.forget()
        self._let_go_when_idle()

    def _let_go_when_idle(self) -> None:
        """After a refusal: what is on its way still has to come back. Its blocks are the engine's."""
        if self._scheduler is not None and not self._scheduler.idle:
            return
        self._scheduler = None
        if self._client is not None:
            self._client = None
            _clients.give_back(self._config)

    def _tell_connection(self) -> None:
        """One line a change: the engine works either way."""
        assert self._scheduler is not None
        connected = self._scheduler.lookups.connected
        if connected == self._was_connected:
            return
        if connected:
            logger.info("Penstock: connected to %s", self._config.url)
        elif self._was_connected or self._ready:
            error = self._client.stats().get("last_error", "")
            logger.warning(
                "Penstock: no daemon at %s, going on without: %s", self._config.url, error
            )
        self._was_connected = connected
