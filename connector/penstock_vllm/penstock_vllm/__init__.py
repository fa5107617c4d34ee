"""Penstock for vLLM: a KV connector that keeps prefixes in a penstockd and brings them back.

Load it with kv_connector_module_path="penstock_vllm", kv_connector="PenstockConnector". The parts
that need no engine (config, estimate, scheduler, ...) can be imported without one.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PenstockConnector"]


def __getattr__(name: str) -> Any:
    if name == "PenstockConnector":
        from .connector import PenstockConnector

        return PenstockConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
