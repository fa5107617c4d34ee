"""What the connector counts, on its way to the engine's log and to /metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

# Counter -> (name in /metrics without the _total, what it counts).
METRICS: dict[str, tuple[str, str]] = {
    "lookups": ("vllm:penstock_lookups", "Prompts that the daemon was asked about."),
    "lookups_late": ("vllm:penstock_lookups_late", "Lookups given up after lookup_timeout_ms."),
    "lookups_failed": ("vllm:penstock_lookups_failed", "Lookups that the daemon refused."),
    "lookups_skipped": (
        "vllm:penstock_lookups_skipped",
        "Prompts not asked about because the daemon was away.",
    ),
    "lookups_cut": (
        "vllm:penstock_lookups_cut",
        "Prompts of which the daemon was asked about the beginning only: they are too long.",
    ),
    "loads_declined": (
        "vllm:penstock_loads_declined",
        "Hits recomputed because loading was predicted to take longer.",
    ),
    "loads_failed": ("vllm:penstock_loads_failed", "Loads that failed and were recomputed."),
    "tokens_pulled": ("vllm:penstock_pulled_tokens", "Prompt tokens loaded, not prefilled."),
    "chunks_pulled": ("vllm:penstock_pulled_chunks", "Chunks loaded, of all ranks."),
    "bytes_loaded": ("vllm:penstock_loaded_bytes", "Bytes loaded."),
    "chunks_stored": ("vllm:penstock_stored_chunks", "Chunks stored, of all ranks."),
    "chunks_existed": ("vllm:penstock_existed_chunks", "Chunks offered that were there already."),
    "chunks_not_stored": ("vllm:penstock_not_stored_chunks", "Chunks that could not be stored."),
    "bytes_stored": ("vllm:penstock_stored_bytes", "Bytes stored."),
    "stores_given_up": (
        "vllm:penstock_stores_given_up",
        "Stores cancelled because the engine needed their blocks.",
    ),
}


class PenstockStats(KVConnectorStats):
    """Counts since they were last taken; `data` maps a counter's name to its increase."""

    def reset(self) -> None:
        self.data = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> PenstockStats:
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        shown = {name: self.data[name] for name in METRICS if self.data.get(name)}
        if self.data.get("load_microseconds") and self.data.get("bytes_loaded"):
            rate = self.data["bytes_loaded"] / self.data["load_microseconds"]
            shown["load_MB_per_s"] = round(rate, 1)
        return shown


class Increases:
    """Turns counters that only grow into what they grew by since the last time."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def take(self, counters: Counter[str]) -> PenstockStats | None:
        grown = {
            name: count - self._seen[name]
            for name, count in counters.items()
            if count != self._seen[name]
        }
        if not grown:
            return None
        self._seen.update(grown)
        return PenstockStats(data=grown)


class PenstockPromMetrics(KVConnectorPromMetrics):
    """One Prometheus counter for each entry of METRICS, labelled by engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: {
                engine: family.labels(*values) for engine, values in per_engine_labelvalues.items()
            }
            for name, family in (
                (name, self._counter_cls(name=metric, documentation=text, labelnames=labelnames))
                for name, (metric, text) in METRICS.items()
            )
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in (transfer_stats_data or {}).items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(count)
