"""The control: a connector whose loads end in noise. What it is compared with must differ."""

from __future__ import annotations

from typing import Any

import torch
from penstock_vllm import PenstockConnector


class NoiseConnector(PenstockConnector):
    """Overwrites what a load brought, and nothing else, before the engine is told."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        self._tensors = kv_caches
        self._blocks: dict[str, list[tuple[int, int]]] = {}

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        for job in connector_metadata.plan.loads:
            self._blocks[job.request_id] = [
                (item.group, block) for item in job.items for block in item.blocks if block > 0
            ]
        super().bind_connector_metadata(connector_metadata)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = super().get_transfer_results(finished_req_ids)
        generator = torch.Generator().manual_seed(0)
        for name in results.finished_recving:
            for group, block in self._blocks.pop(name):
                for layer in self._shape.groups[group].layer_names:
                    page = self._tensors[layer][block]
                    noise = torch.randn(page.shape, generator=generator) * page.float().std()
                    page.copy_(noise.to(page.dtype))
        return results
