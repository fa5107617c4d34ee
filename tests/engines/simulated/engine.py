"""An engine whose scheduler, KV manager and connector are real and whose model is arithmetic.

vLLM's own Scheduler and KVCacheManager run with the connector attached as in production, scheduler
half and worker half. Only the forward pass is a stand-in: the KV of a token is a number that depends
on every token up to it, and "attention" checks that each position it would read holds exactly that
number. A page that is stale, of another request, or loaded into the wrong place ends the test at
the first step that would have read it. A thousand requests take seconds.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from harness.process import connector_config
from vllm import SamplingParams
from vllm.config import KVTransferConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
_POISON = -7


@dataclasses.dataclass
class _Row:
    """What a model runner keeps of a request."""

    tokens: list[int]
    blocks: list[list[int]]
    links: list[int] = dataclasses.field(default_factory=list)

    def chain(self, length: int) -> np.ndarray:
        _extend_chain(self.links, self.tokens, length)
        return np.array(self.links[:length], dtype=np.int64)


@dataclasses.dataclass
class Finished:
    tokens: list[int]
    reason: str
    cached_tokens: int


class SimulatedEngine:
    def __init__(
        self,
        model: str,
        extra: dict[str, Any] | None,
        *,
        window: int | None = 64,
        num_blocks: int = 200,
        max_batched_tokens: int = 512,
        max_seqs: int = 8,
        world_size: int = 1,
        policy: str | None = None,
        prefix_caching: bool = True,
        non_causal: bool = False,
        one_of_several: bool = False,
        change_handshakes: Callable[[dict[tuple[int, int], Any]], None] = lambda handshakes: None,
    ) -> None:
        self.window = window
        self.world_size = world_size
        self.vllm_config = self._make_config(model, max_batched_tokens, max_seqs)
        if extra is not None:
            self.vllm_config.kv_transfer_config = _transfer_config(extra, policy, one_of_several)
        self.vllm_config.cache_config.enable_prefix_caching = prefix_caching
        self.vllm_config.parallel_config.tensor_parallel_size = world_size
        self._non_causal = non_causal
        self._change_handshakes = change_handshakes
        self.groups = self._make_groups()
        kv_config = KVCacheConfig(num_blocks, [], self.groups, kv_cache_layout="LBHNC")
        self.vllm_config.cache_config.num_gpu_blocks = num_blocks
        self.vllm_config.cache_config.block_size = BLOCK
        scheduler_block, hash_block = resolve_kv_cache_block_sizes(kv_config, self.vllm_config)
        kv_config.hash_block_size = hash_block
        # Two layers a group; groups share the memory, as hybrid models do: slot s of every group is
        # the same bytes, and a block belongs to one group at a time.
        self.memory = [
            torch.full((2, num_blocks, 1, BLOCK, 1), _POISON, dtype=torch.int64)
            for _ in range(world_size)
        ]
        self.scheduler = Scheduler(
            vllm_config=self.vllm_config,
            kv_cache_config=kv_config,
            structured_output_manager=StructuredOutputManager(self.vllm_config),
            block_size=scheduler_block,
            hash_block_size=hash_block,
            log_stats=True,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(hash_block, sha256)
        self.connector = self.scheduler.connector
        self.workers: list[Any] = []
        if self.connector is not None:
            self._start_workers(kv_config)
        self.finished: dict[str, Finished] = {}
        self.steps = 0
        self._rows: dict[str, _Row] = {}
        self.reads = 0

    # --- Requests --------------------------------------------------------------------------------

    def add(self, name: str, prompt: list[int], max_tokens: int = 4, **options: Any) -> Request:
        request = Request(
            name,
            list(prompt),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True, **options),
            None,
            block_hasher=self._hasher,
        )
        self.scheduler.add_request(request)
        return request

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is left to do, stores included."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def expect(self, prompt: list[int], max_tokens: int = 4) -> list[int]:
        """What the model says after a prompt, whatever the cache does."""
        row = _Row(list(prompt), [])
        for _ in range(max_tokens):
            row.tokens.append(_next_token(row.chain(len(row.tokens))[-1]))
        return row.tokens[len(prompt) :]

    @property
    def blocks_in_use(self) -> int:
        pool = self.scheduler.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - pool.get_num_free_blocks() - 1

    def check_null_block(self) -> None:
        for memory in self.memory:
            assert (memory[:, 0] == _POISON).all(), "something wrote into the null block"

    # --- A step ----------------------------------------------------------------------------------

    def step(self) -> None:
        self.steps += 1
        plan = self.scheduler.schedule()
        self._update_rows(plan)
        outputs = [self._worker_step(rank, plan) for rank in range(self.world_size)]
        output = outputs[0]
        if self.connector is not None:
            output = self._aggregator.aggregate(outputs)
        sampled = []
        for name in output.req_ids:
            request = self.scheduler.requests.get(name)
            done = request.num_computed_tokens if request is not None else 0
            whole = request is not None and done >= request.num_tokens
            row = self._rows[name]
            sampled.append([_next_token(row.chain(len(row.tokens))[-1])] if whole else [])
        output.sampled_token_ids = sampled
        for name, tokens in zip(output.req_ids, sampled, strict=True):
            self._rows[name].tokens += tokens
        self._note(self.scheduler.update_from_output(plan, output))

    def _worker_step(self, rank: int, plan: Any) -> ModelRunnerOutput:
        names = list(plan.num_scheduled_tokens)
        output = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)})
        worker = self.workers[rank] if self.workers else None
        if worker is not None:
            worker.bind_connector_metadata(plan.kv_connector_metadata)
        for name in names:
            self._forward(rank, name, self._computed[name], plan.num_scheduled_tokens[name])
        if worker is not None:
            worker.start_load_kv(None)
            worker.wait_for_save()
            results = worker.get_transfer_results(plan.finished_req_ids)
            output.kv_connector_output = KVConnectorOutput(
                finished_sending=results.finished_sending,
                finished_recving=results.finished_recving,
                failed_recving=results.failed_recving,
                invalid_block_ids=worker.get_block_ids_with_load_errors(),
                kv_connector_stats=worker.get_kv_connector_stats(),
                kv_connector_worker_meta=worker.build_connector_worker_meta(),
            )
            worker.clear_connector_metadata()
        return output

    def _forward(self, rank: int, name: str, computed: int, tokens: int) -> None:
        row = self._rows[name]
        end = computed + tokens
        assert end <= len(row.tokens), "a step computes tokens that are not known"
        chain = row.chain(end)
        positions = np.arange(end)
        for index, group in enumerate(self.groups):
            window = getattr(group.kv_cache_spec, "sliding_window", None)
            first = 0 if window is None else max(0, computed + 1 - window)
            blocks = np.array(row.blocks[index])[positions // BLOCK]
            assert (blocks[computed:] != 0).all(), "a step writes into the null block"
            for layer in range(2):
                right = (chain << 8) | (rank << 6) | (index << 3) | layer
                memory = self.memory[rank].numpy()[layer, :, 0, :, 0]
                read = memory[blocks[first:computed], positions[first:computed] % BLOCK]
                self.reads += len(read)
                wrong = np.flatnonzero(read != right[first:computed])
                assert wrong.size == 0, (
                    f"wrong KV at positions {wrong + first} of {name}, group {index}, "
                    f"layer {layer}, rank {rank}"
                )
                memory[blocks[computed:], positions[computed:] % BLOCK] = right[computed:]

    # --- What a model runner remembers -----------------------------------------------------------

    def _update_rows(self, plan: Any) -> None:
        for name in plan.finished_req_ids:
            self._rows.pop(name, None)
        self._computed = {}
        for new in plan.scheduled_new_reqs:
            self._rows[new.req_id] = _Row(
                list(new.prompt_token_ids), [list(ids) for ids in new.block_ids]
            )
            self._computed[new.req_id] = new.num_computed_tokens
        cached = plan.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            self._computed[name] = cached.num_computed_tokens[i]
            row = self._rows[name]
            blocks = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                row.blocks = [list(ids) for ids in blocks]
                row.tokens = list(cached.all_token_ids[name])
            elif blocks is not None:
                for mine, new_ids in zip(row.blocks, blocks, strict=True):
                    mine += new_ids

    def _note(self, outputs: dict[int, Any]) -> None:
        for batch in outputs.values():
            for output in batch.outputs:
                entry = self.finished.setdefault(output.request_id, Finished([], "", 0))
                entry.tokens += output.new_token_ids
                if output.finish_reason is not None:
                    entry.reason = str(output.finish_reason)
                if output.prefill_stats is not None:
                    entry.cached_tokens = output.prefill_stats.num_external_cached_tokens

    # --- Construction ----------------------------------------------------------------------------

    @staticmethod
    def _make_config(model: str, max_batched_tokens: int, max_seqs: int) -> Any:
        config = copy.copy(_base_config(model, max_batched_tokens, max_seqs))
        config.cache_config = copy.copy(config.cache_config)
        config.parallel_config = copy.copy(config.parallel_config)
        return config

    def _make_groups(self) -> list[KVCacheGroupSpec]:
        common = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 2, "dtype": torch.int16}
        groups = [
            KVCacheGroupSpec(
                ["model.layers.2.attn", "model.layers.5.attn"],
                FullAttentionSpec(**common, non_causal=self._non_causal),
            )
        ]
        if self.window is not None:
            sliding = SlidingWindowSpec(**common, sliding_window=self.window)
            groups.insert(
                0, KVCacheGroupSpec(["model.layers.0.attn", "model.layers.3.attn"], sliding)
            )
            groups.insert(
                1, KVCacheGroupSpec(["model.layers.1.attn", "model.layers.4.attn"], sliding)
            )
        return groups

    def _start_workers(self, kv_config: KVCacheConfig) -> None:
        from penstock_vllm import engine_0_32

        handshakes = {}
        for rank in range(self.world_size):
            ranks = {"tp_rank": rank, "tp_size": self.world_size}
            ranks |= {"pp_rank": 0, "pp_size": 1, "dcp_rank": 0, "dcp_size": 1}
            original, engine_0_32.ranks = engine_0_32.ranks, lambda ranks=ranks: ranks
            try:
                with set_current_vllm_config(self.vllm_config):  # As in a worker's process.
                    worker = KVConnectorFactory.create_connector(
                        self.vllm_config, KVConnectorRole.WORKER, kv_config
                    )
            finally:
                engine_0_32.ranks = original
            tensors = {
                name: self.memory[rank][slot]
                for group in self.groups
                for slot, name in enumerate(group.layer_names)
            }
            worker.register_kv_caches(tensors)
            handshakes[0, rank] = worker.get_handshake_metadata()
            self.workers.append(worker)
        self._change_handshakes(handshakes)
        self.connector.set_xfer_handshake_metadata_pp_aware(handshakes)
        self._aggregator = KVOutputAggregator.from_connector(self.connector, self.world_size)

    def shutdown(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        if self.connector is not None:
            self.connector.shutdown()


def _transfer_config(
    extra: dict[str, Any], policy: str | None, one_of_several: bool
) -> KVTransferConfig:
    if not one_of_several:
        return KVTransferConfig(**connector_config(extra, policy))
    return KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_load_failure_policy=policy,
        kv_connector_extra_config={"connectors": [connector_config(extra)]},
    )


@functools.cache
def _base_config(model: str, max_batched_tokens: int, max_seqs: int) -> Any:
    """Takes a while to make, and is not changed: copied."""
    return EngineArgs(
        model=model,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=BLOCK,
        max_model_len=4096,
        max_num_batched_tokens=max_batched_tokens,
        max_num_seqs=max_seqs,
        kv_cache_memory_bytes=1 << 20,
    ).create_engine_config()


# --- The model -----------------------------------------------------------------------------------


def _extend_chain(links: list[int], tokens: list[int], length: int) -> None:
    """For each position a number that depends on every token up to it."""
    while len(links) < length:
        previous = links[-1] if links else 0
        text = b"%d,%d" % (previous, tokens[len(links)])
        digest = hashlib.blake2b(text, digest_size=6).digest()
        links.append(int.from_bytes(digest, "little"))


def _next_token(link: int) -> int:
    return int(link) % 1000
