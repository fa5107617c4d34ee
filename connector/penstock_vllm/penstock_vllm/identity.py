"""Names everything that decides what the bytes of a chunk mean, so that nothing else is ever read.

Three parts make a chunk's key: the namespace (this engine's model, weights, KV format, rank, group,
hashing), the engine's own block hash (the tokens, images and prompt embeddings up to there), and a
suffix for what those hashes do not tell apart (the adapter's weights, the salt).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .messages import Shape, WorkerFacts

_WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
# How an adapter's weights are applied: scaling, rank-stabilised or not, target modules.
_ADAPTER_CONFIG = "adapter_config.json"
_MAX_ADAPTERS = 4096
_READ_BYTES = 1 << 22
# Of a model's configuration: what says nothing about the bytes.
_CONFIG_NOISE = {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}


class IdentityError(ValueError):
    """What would name the bytes cannot be found out; the text says what to do."""


def digest_config(config: Mapping[str, Any]) -> str:
    """Of a model's configuration as the engine uses it, overrides included."""
    kept = {key: value for key, value in config.items() if key not in _CONFIG_NOISE}
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# --- Weights -------------------------------------------------------------------------------------


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights at `path` (a file, or a directory of them), in a fixed order.

    Raises IdentityError when there are none.
    """
    if path.is_file():
        return [path]
    for suffix in _WEIGHT_SUFFIXES:
        files = sorted(path.glob(f"*{suffix}"))
        if files:
            return files
    raise IdentityError(
        f'no weight files under "{path}": set model_fingerprint in kv_connector_extra_config to a '
        "text that changes whenever the weights do"
    )


def digest_weights(path: Path, cache: Path | None) -> str:
    """SHA-256 over names, sizes and contents of the weight files.

    Contents are read once: what they came to is kept in `cache`, by file identity and time of
    change. Files of the Hugging Face cache carry the SHA-256 of their contents in their name.
    """
    return _digest_files(b"penstock.weights.v1", weight_files(path), cache)


def adapter_files(path: Path) -> list[Path]:
    """The files that make up the adapter in the directory `path`, in a fixed order.

    Raises IdentityError when some are missing.
    """
    config = path / _ADAPTER_CONFIG
    if not config.is_file():
        raise IdentityError(
            f'no {_ADAPTER_CONFIG} in "{path}": chunks of its requests have no name'
        )
    return [config, *weight_files(path)]


def digest_adapter(path: Path, cache: Path | None) -> str:
    """As digest_weights(), of the configuration too: it says how the weights are applied."""
    return _digest_files(b"penstock.adapter.v1", adapter_files(path), cache)


def _digest_files(kind: bytes, files: list[Path], cache: Path | None) -> str:
    total = hashlib.sha256(kind)
    for file in files:
        content = _digest_file(file, cache)
        total.update(f"|{file.name}|{file.stat().st_size}|{content}".encode())
    return total.hexdigest()


def _digest_file(file: Path, cache: Path | None) -> str:
    real = file.resolve()
    if real.parent.name == "blobs" and len(real.name) == 64 and _is_hex(real.name):
        return real.name
    status = real.stat()
    times = f"{status.st_mtime_ns}|{status.st_ctime_ns}"
    key = f"{real}|{status.st_dev}|{status.st_ino}|{status.st_size}|{times}"
    entry = cache / hashlib.sha256(key.encode()).hexdigest() if cache is not None else None
    if entry is not None:
        try:
            known = entry.read_text()
            if len(known) == 64 and _is_hex(known):
                return known
        except OSError:
            pass
    digest = hashlib.sha256()
    with open(real, "rb") as source:
        while piece := source.read(_READ_BYTES):
            digest.update(piece)
    text = digest.hexdigest()
    if entry is not None:
        _keep(entry, text)
    return text


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text)


def _keep(entry: Path, text: str) -> None:
    """Best effort: a cache that cannot be written costs time, nothing else."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=entry.parent)
        with os.fdopen(handle, "w") as sink:
            sink.write(text)
        os.replace(name, entry)
    except OSError:
        pass


@dataclasses.dataclass
class _Digest:
    """Of the files at a path."""

    result: str | Exception | None = None  # None while it is being computed.


class Background:
    """Computes digests of files on a thread of its own; the scheduler asks without waiting."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._lock = threading.Condition()
        self._weights: dict[str, _Digest] = {}
        self._adapters: dict[str, _Digest] = {}

    def start(self, path: str) -> None:
        self._find(self._weights, path, digest_weights)

    def get(self, path: str) -> str | None:
        """The digest of weights, which are read once: those that the engine started with.

        None while it is being computed. Raises IdentityError.
        """
        return self._find(self._weights, path, digest_weights)

    def adapter(self, path: str) -> str | None:
        """The digest of an adapter, read once: its files are taken never to change where they lie.

        None while it is being computed. Raises IdentityError.
        """
        if path not in self._adapters and len(self._adapters) >= _MAX_ADAPTERS:
            self._adapters.pop(next(iter(self._adapters)))
        return self._find(self._adapters, path, digest_adapter)

    def wait(self, seconds: float) -> None:
        """Until some digest is done, or for `seconds`."""
        with self._lock:
            self._lock.wait(seconds)

    def _find(
        self,
        known: dict[str, _Digest],
        path: str,
        compute: Callable[[Path, Path | None], str],
    ) -> str | None:
        with self._lock:
            digest = known.get(path)
            if digest is None:
                digest = known[path] = _Digest()
                threading.Thread(
                    target=self._work,
                    args=(digest, path, compute),
                    name="penstock-digest",
                    daemon=True,
                ).start()
            result = digest.result
        if isinstance(result, Exception):
            raise IdentityError(str(result)) from result
        return result

    def _work(
        self, digest: _Digest, path: str, compute: Callable[[Path, Path | None], str]
    ) -> None:
        try:
            result: str | Exception = compute(Path(path), self._cache)
        except (OSError, IdentityError) as error:
            result = error
        with self._lock:
            digest.result = result
            self._lock.notify_all()


# --- Namespaces ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EngineFacts:
    """What the scheduler's process knows about the engine. Texts are compared, never parsed."""

    tenant: str
    tenant_salt: str
    model: str
    weights: str
    config: str
    compute_dtype: str
    cache_dtype: str
    scale_mode: str
    quantization: str
    engine: str
    runner: str
    hash_algorithm: str
    none_hash: str
    speculation: str = ""
    media: str = ""
    """How images, video and audio are processed, where that is not the model's own way."""
    generation: int = 0
    """Not 0 once the weights may have changed in place: nothing older is read then."""


def namespace_fields(facts: EngineFacts, shape: Shape, worker: WorkerFacts) -> list[dict[str, Any]]:
    """For each group of one worker, the fields of its NamespaceDescriptor."""
    fields = []
    for group, pages in zip(shape.groups, worker.groups, strict=True):
        layers = hashlib.sha256("\n".join(pages.layer_names).encode()).hexdigest()[:32]
        fields.append(
            {
                "tenant": facts.tenant,
                "tenant_salt": facts.tenant_salt,
                "model": facts.model,
                "model_revision": f"weights:{facts.weights},config:{facts.config}",
                "kv_dtype": f"{facts.cache_dtype}/{pages.kv_dtype}",
                "kv_scale_mode": facts.scale_mode,
                "layout": f"vllm.{worker.layout}.v1",
                "block_tokens": group.block_tokens,
                "chunk_tokens": shape.chunk_tokens,
                "tp_rank": worker.tp_rank,
                "tp_size": worker.tp_size,
                "pp_rank": worker.pp_rank,
                "pp_size": worker.pp_size,
                "dcp_rank": worker.dcp_rank,
                "dcp_size": worker.dcp_size,
                "group": group.index,
                "group_kind": group.kind,
                "adapter_generation": facts.generation,
                "extension": {
                    "compute_dtype": facts.compute_dtype,
                    "engine": facts.engine,
                    "geometry": pages.geometry,
                    "groups": str(len(shape.groups)),
                    "hash_algorithm": facts.hash_algorithm,
                    "hash_tokens": str(shape.hash_tokens),
                    "layers": layers,
                    "none_hash": facts.none_hash,
                    "page_kind": pages.page_kind,
                    "quantization": facts.quantization,
                    "runner": facts.runner,
                    "speculation": facts.speculation,
                    **({"media": facts.media} if facts.media else {}),
                },
            }
        )
    return fields


# --- Requests ------------------------------------------------------------------------------------


def request_suffix(
    adapter: tuple[str, str] | None, adapter_digest: str | None, salt: str | None
) -> bytes:
    """What a request's identities end in: empty for a plain request.

    The engine's hashes hold the adapter's name and the salt untagged, so that an adapter "x" looks
    like a salt "x", and say nothing about the adapter's weights.
    """
    if adapter is None and not salt:
        return b""
    tagged: list[list[str]] = []
    if adapter is not None:
        tagged.append(["adapter", adapter[0], adapter_digest or ""])
    if salt:
        tagged.append(["salt", salt])
    return b"+" + hashlib.sha256(json.dumps(tagged).encode()).digest()


def choose_chunk_tokens(
    wanted: int, block_tokens: Sequence[int], windows: Sequence[int], hash_tokens: int
) -> int:
    """Tokens of a chunk: a whole number of blocks of every group.

    Unless the operator says otherwise about 256, but no more than the smallest window: chunks of a
    sliding group must be whole in memory when they are complete. Raises IdentityError.
    """
    unit = math.lcm(*block_tokens, hash_tokens)
    if wanted:
        if wanted % unit:
            raise IdentityError(
                f"chunk_tokens is {wanted}, but a chunk must be a whole number of every block: "
                f"a multiple of {unit}"
            )
        return wanted
    target = min([256, *windows])
    return max(unit, target // unit * unit)
