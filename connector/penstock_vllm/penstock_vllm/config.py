"""What an operator may say in kv_connector_extra_config, checked.

Every key is optional. A key that does not exist is an error that names the nearest one that does,
because a mistyped key that is ignored is found out in production.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """A key or value that cannot be meant; the text says which and what would be right."""


def _option(default: Any, text: str, *, low: float | None = None, high: float | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "low": low, "high": high})


@dataclasses.dataclass(frozen=True)
class ConnectorConfig:
    """The connector's settings. Times are in the unit that the name ends in."""

    url: str = _option("tcp://127.0.0.1:7411", "penstockd's address: tcp://host:port, unix:///path")
    wire: str = _option("auto", "how bulk bytes move: auto, local, tcp or ucx")
    tenant: str = _option("default", "whose chunks these are")
    tenant_salt: str = _option("", "changes every key of the tenant")
    name: str = _option("", "what operators see of this engine; default: vllm and the process id")

    chunk_tokens: int = _option(
        0, "tokens of a chunk, a multiple of every block size; 0: about 256", low=0, high=1 << 20
    )
    model_fingerprint: str = _option(
        "", "names the weights, instead of a digest of the weight files"
    )
    store: bool = _option(True, "store what the engine computes")
    load: bool = _option(True, "load what is stored")
    store_decode: bool = _option(True, "store chunks that generated tokens complete, too")
    trust_media_ids: bool = _option(
        False, "share prompts with images, video or audio, too: clients name them by content"
    )
    trust_adapter_files: bool = _option(
        False, "share prompts with a LoRA adapter, too: its files never change where they lie"
    )

    lookup_timeout_ms: int = _option(
        100, "a lookup that takes longer is a miss", low=1, high=60_000
    )
    lookup_wait_ms: float = _option(
        2.0, "how long an idle scheduler waits for a lookup before it asks again", low=0, high=1000
    )
    load_timeout_ms: int = _option(
        30_000, "a load that takes longer is given up in any case", low=1, high=600_000
    )
    store_timeout_ms: int = _option(
        5000, "a store that takes longer is dropped", low=1, high=600_000
    )
    connect_timeout_ms: int = _option(2000, "of one attempt to connect", low=1, high=60_000)
    reserve_ttl_s: float = _option(
        30.0, "how long the daemon keeps a match for its load", low=0.1, high=3600
    )
    decline_slow_loads: bool = _option(
        True,
        "recompute where loading is predicted to take longer, and give up loads that take much "
        "longer than predicted, by running measurements",
    )
    min_load_tokens: int = _option(
        0, "hits that save fewer tokens are recomputed", low=0, high=1 << 30
    )
    pinned_blocks_percent: float = _option(
        25.0, "of the engine's blocks may wait for a store to read them", low=0, high=100
    )
    breaker_min_ms: int = _option(
        500, "no lookups for so long after repeated timeouts; doubles", low=1, high=600_000
    )
    breaker_max_ms: int = _option(30_000, "the longest such pause", low=1, high=3_600_000)

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> ConnectorConfig:
        """Raises ConfigError."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in extra.items():
            if key not in fields:
                raise ConfigError(_unknown(key, list(fields)))
            values[key] = _checked(fields[key], value)
        config = cls(**values)
        if config.wire not in ("auto", "local", "tcp", "ucx"):
            raise ConfigError(
                f'penstock: wire is "{config.wire}", not one of auto, local, tcp, ucx'
            )
        if not config.url.startswith(("tcp://", "unix://")):
            raise ConfigError(
                f'penstock: url is "{config.url}"; write tcp://host:port or unix:///path'
            )
        if config.breaker_max_ms < config.breaker_min_ms:
            raise ConfigError("penstock: breaker_max_ms is less than breaker_min_ms")
        return config

    @classmethod
    def describe(cls) -> str:
        """One line a key, for documentation."""
        return "\n".join(
            f"{field.name} ({field.default!r}): {field.metadata['help']}"
            for field in dataclasses.fields(cls)
        )


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"?' if near else "keys: " + ", ".join(sorted(known))
    return f'penstock: kv_connector_extra_config has no key "{key}"; {hint}'


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    kind = type(field.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(
            f"penstock: {field.name} is {value!r}, of type {type(value).__name__}; "
            f"a {kind.__name__} is wanted ({field.metadata['help']})"
        )
    low, high = field.metadata["low"], field.metadata["high"]
    if low is not None and not low <= value <= high:
        raise ConfigError(f"penstock: {field.name} is {value!r}, not in {low}..{high}")
    return value
