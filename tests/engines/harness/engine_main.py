"""The engine process of the tests: one vLLM engine, driven by JSON lines.

Started by process.py with two descriptors: commands come in on one, replies go out on the other,
and what the engine prints goes to a log file. One command at a time:

    {"op": "start", "engine": {...LLM arguments...}}
    {"op": "generate", "requests": [{"prompt": [ids], ...}], "together": false, ...}
    {"op": "reset_prefix_cache"} {"op": "trim_prefix_cache", "prompt": [ids], "tokens": n}
    {"op": "drain"} {"op": "wait_connected"} {"op": "state"} {"op": "stop"}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from typing import Any


class Engine:
    """One LLM and the bookkeeping to time its requests."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._next_id = 0
        self._preemptions = 0

    # -- commands ---------------------------------------------------------------------------------

    def start(self, engine: dict[str, Any]) -> dict[str, Any]:
        begin = time.monotonic()
        from vllm import LLM

        if "kv_transfer_config" in engine:
            from vllm.config import KVTransferConfig

            engine["kv_transfer_config"] = KVTransferConfig(**engine["kv_transfer_config"])
        self._llm = LLM(**engine)
        self._count_preemptions()
        return {"seconds": time.monotonic() - begin}

    def generate(
        self,
        requests: list[dict[str, Any]],
        together: bool = False,
        abort_after_s: float | None = None,
        max_seconds: float = 600.0,
    ) -> dict[str, Any]:
        """Runs requests one after the other, or all at once.

        A request: prompt (token ids), max_tokens, logprobs, and optionally cache_salt and
        abort_after_s, the time after which it is aborted.
        """
        results: list[dict[str, Any]] = []
        batches = [requests] if together else [[request] for request in requests]
        for batch in batches:
            results.extend(self._run_batch(batch, time.monotonic() + max_seconds))
        return {"results": results}

    def reset_prefix_cache(self) -> dict[str, Any]:
        self.drain()
        return {"done": bool(self._llm.reset_prefix_cache())}

    def trim_prefix_cache(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """Forgets what the engine's own prefix cache knows of `prompt` beyond `tokens`."""
        scheduler = self._scheduler()
        manager = scheduler.kv_cache_manager
        request = self._probe_request(prompt)
        pool = manager.block_pool
        evicted: set[int] = set()
        block = scheduler.hash_block_size
        for index in range(tokens // block, len(request.block_hashes)):
            for group in range(len(scheduler.kv_cache_config.kv_cache_groups)):
                cached = pool.get_cached_block(request.block_hashes[index], [group])
                if cached:
                    evicted.update(b.block_id for b in cached)
        manager.evict_blocks(evicted)
        return {"evicted": len(evicted), "left": self._local_hit(prompt)}

    def local_hit(self, prompt: list[int]) -> dict[str, Any]:
        return {"tokens": self._local_hit(prompt)}

    def drain(self, max_seconds: float = 30.0) -> dict[str, Any]:
        """Steps the idle engine until its connector has nothing in flight."""
        deadline = time.monotonic() + max_seconds
        core = self._core()
        while core.scheduler.has_requests():
            if time.monotonic() > deadline:
                return {"idle": False}
            core.step_fn()
            time.sleep(0.001)
        return {"idle": True}

    def state(self) -> dict[str, Any]:
        """Counts that a test may want: blocks in use, KV groups, the connector's counters."""
        scheduler = self._scheduler()
        pool = scheduler.kv_cache_manager.block_pool
        connector = scheduler.connector
        groups = [
            {
                "spec": type(group.kv_cache_spec).__name__,
                "window": getattr(group.kv_cache_spec, "sliding_window", None),
                "block_tokens": group.kv_cache_spec.block_size,
                "layers": len(group.layer_names),
            }
            for group in scheduler.kv_cache_config.kv_cache_groups
        ]
        return {
            "blocks": pool.num_gpu_blocks,
            "blocks_used": pool.num_gpu_blocks - pool.get_num_free_blocks() - 1,
            "requests": len(scheduler.requests),
            "preemptions": self._preemptions,
            "groups": groups,
            "connector": connector.debug_state() if connector is not None else None,
        }

    def wait_connected(self, max_seconds: float = 60.0) -> dict[str, Any]:
        """Until the connector has its daemon again and trusts it."""
        connector = self._scheduler().connector
        lookups = connector._scheduler.lookups
        deadline = time.monotonic() + max_seconds
        while True:
            lookups.mend(0.1)
            if lookups.usable:
                return {"incarnation": connector._client.incarnation}
            if time.monotonic() > deadline:
                raise TimeoutError(f"not connected: {connector._client.stats()}")
            time.sleep(0.01)

    def freeze_before_load(self, pid: int) -> dict[str, Any]:
        """Stops the daemon with SIGSTOP as soon as the next load is about to start."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        worker = get_kv_transfer_group()._worker
        original = worker._start_load

        def start_load(job: Any) -> None:
            os.kill(pid, signal.SIGSTOP)
            worker._start_load = original
            original(job)

        worker._start_load = start_load
        return {}

    def stop(self) -> dict[str, Any]:
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
        return {}

    # -- parts ------------------------------------------------------------------------------------

    def _count_preemptions(self) -> None:
        core = getattr(self._llm.llm_engine.engine_core, "engine_core", None)
        if core is None:
            return  # In a process of its own.
        original = core.scheduler._preempt_request

        def preempt(*args: Any, **kwargs: Any) -> None:
            self._preemptions += 1
            original(*args, **kwargs)

        core.scheduler._preempt_request = preempt

    def _core(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core

    def _scheduler(self) -> Any:
        return self._core().scheduler

    def _probe_request(self, prompt: list[int]) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        return Request(
            "probe",
            list(prompt),
            SamplingParams(max_tokens=1),
            None,
            block_hasher=self._core().request_block_hasher,
        )

    def _local_hit(self, prompt: list[int]) -> int:
        return self._scheduler().kv_cache_manager.get_computed_blocks(self._probe_request(prompt))[
            1
        ]

    def _run_batch(self, batch: list[dict[str, Any]], deadline: float) -> list[dict[str, Any]]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        engine = self._llm.llm_engine
        records: dict[str, dict[str, Any]] = {}
        for request in batch:
            name = f"r{self._next_id}"
            self._next_id += 1
            prompt = TokensPrompt(prompt_token_ids=list(request["prompt"]))
            if request.get("cache_salt"):
                prompt["cache_salt"] = request["cache_salt"]
            params = SamplingParams(
                max_tokens=request.get("max_tokens", 8),
                temperature=0.0,
                logprobs=request.get("logprobs", 5),
                ignore_eos=True,
                detokenize=False,
            )
            begin = time.monotonic()
            engine.add_request(name, prompt, params)
            records[name] = {
                "begin": begin,
                "abort_at": begin + request["abort_after_s"]
                if "abort_after_s" in request
                else None,
                "prompt_tokens": len(request["prompt"]),
                "result": None,
                "ttft": None,
            }
        while engine.has_unfinished_requests() and time.monotonic() < deadline:
            self._abort_due(engine, records)
            for output in engine.step():
                self._note_output(records, output)
        return [self._result(name, record) for name, record in records.items()]

    @staticmethod
    def _abort_due(engine: Any, records: dict[str, dict[str, Any]]) -> None:
        now = time.monotonic()
        due = [n for n, r in records.items() if r["abort_at"] is not None and now >= r["abort_at"]]
        for name in due:
            records[name]["abort_at"] = None
            records[name]["aborted"] = True
        if due:
            engine.abort_request(due)

    @staticmethod
    def _note_output(records: dict[str, dict[str, Any]], output: Any) -> None:
        record = records.get(output.request_id)
        if record is None:
            return
        if record["ttft"] is None and output.outputs and output.outputs[0].token_ids:
            record["ttft"] = time.monotonic() - record["begin"]
        if output.finished:
            record["total"] = time.monotonic() - record["begin"]
        record["result"] = output

    @staticmethod
    def _result(name: str, record: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {
            "id": name,
            "prompt_tokens": record["prompt_tokens"],
            "aborted": record.get("aborted", False),
            "finished": False,
        }
        output = record["result"]
        if output is None:
            return result
        completion = output.outputs[0]
        result.update(
            finished=output.finished,
            finish_reason=completion.finish_reason,
            tokens=list(completion.token_ids),
            # repr() of a float gives back the same float: equality of text is equality of bits.
            logprobs=[
                {str(token): repr(entry.logprob) for token, entry in position.items()}
                for position in (completion.logprobs or [])
            ],
            cached_tokens=output.num_cached_tokens,
            ttft=record["ttft"],
            seconds=record.get("total"),
        )
        return result


def main() -> int:
    engine = Engine()
    with (
        open(int(sys.argv[1]), encoding="utf-8") as commands,
        open(int(sys.argv[2]), "w", encoding="utf-8") as replies,
    ):
        for line in commands:
            command = json.loads(line)
            operation = command.pop("op")
            try:
                reply: dict[str, Any] = {"ok": True, **getattr(engine, operation)(**command)}
            except Exception as error:  # The parent reports it with the log.
                reply = {"ok": False, "error": repr(error), "traceback": traceback.format_exc()}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
            if operation == "stop":
                return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
