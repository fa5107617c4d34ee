"""Namespaces and the keys of the chunks in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Union

from . import _core
from ._core import Namespace


@dataclasses.dataclass(frozen=True)
class NamespaceDescriptor:
    """Everything that decides whether KV bytes are interchangeable.

    Two engines share chunks exactly when their descriptors are equal. A field that does not apply
    keeps its default; what has no field goes into ``extension``.
    """

    tenant: str = ""
    """Whose chunks: isolation is by tenant first. Client.namespace() fills in the client's."""
    tenant_salt: str = ""
    """Secret or not, changes every key of the tenant."""
    model: str = ""
    """Name or path as the operator knows it."""
    model_revision: str = ""
    """Fingerprint of weights and configuration."""
    kv_dtype: str = ""
    """``"bfloat16"``, ``"fp8_e4m3"``, ..."""
    kv_scale_mode: str = ""
    """``"none"``, ``"per-tensor:<digest of scales>"``, ..."""
    layout: str = ""
    """Layout name and version, e.g. ``"vllm.LBHNC.v1"``."""
    block_tokens: int = 0
    """Tokens of one engine block."""
    chunk_tokens: int = 0
    """Tokens of one chunk: a multiple of ``block_tokens``."""
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    dcp_rank: int = 0
    dcp_size: int = 1
    group: int = 0
    """KV group of a hybrid model."""
    group_kind: str = ""
    """``"full"``, ``"sliding:512"``, ``"mamba"``, ..."""
    adapter: str = ""
    """LoRA or other adapter, by content where it can be had."""
    adapter_generation: int = 0
    """Bumped when the adapter or the weights change in place."""
    extension: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Whatever else decides the bytes: runner version, hash algorithm and seed, ..."""

    def fingerprint(self) -> str:
        """64 hexadecimal digits. Raises InvalidArgument when the descriptor is not valid."""
        return self.fingerprint_bytes().hex()

    def fingerprint_bytes(self) -> bytes:
        """The same as 32 bytes."""
        return _core.fingerprint(self)

    def encode(self) -> bytes:
        """The canonical encoding that the fingerprint is the SHA-256 of."""
        return _core.encode_descriptor(self)

    def __hash__(self) -> int:
        return hash(self.fingerprint_bytes())


AnyNamespace = Union[Namespace, NamespaceDescriptor, str, bytes]
"""A namespace, or its descriptor, or its fingerprint (hexadecimal, or 32 bytes)."""


def _fingerprint(ns: AnyNamespace) -> bytes:
    if isinstance(ns, Namespace):
        return ns.fingerprint_bytes
    if isinstance(ns, NamespaceDescriptor):
        return ns.fingerprint_bytes()
    if isinstance(ns, str):
        return bytes.fromhex(ns)
    return ns


def prefix_key(ns: AnyNamespace, parent: bytes | None, identity: _core.Buffer) -> bytes:
    """The key of a chunk of a prompt.

    ``parent`` is the key of the chunk before it, None for the first one. ``identity`` is everything
    that tells this chunk's tokens from others with the same parent: best the engine's own block
    hash, which covers adapters, images and salts.
    """
    return _core.prefix_key(_fingerprint(ns), parent, identity)


def prefix_keys(
    ns: AnyNamespace, identities: Sequence[_core.Buffer], parent: bytes | None = None
) -> list[bytes]:
    """The keys of consecutive chunks, each the parent of the next."""
    return _core.prefix_keys(_fingerprint(ns), parent, list(identities))


def prefix_tokens_key(ns: AnyNamespace, parent: bytes | None, tokens: Sequence[int]) -> bytes:
    """Like prefix_key(), for an identity that is a list of token ids."""
    return _core.prefix_tokens_key(_fingerprint(ns), parent, list(tokens))


def named_key(ns: AnyNamespace, name: str) -> bytes:
    """The key of an object with a name."""
    return _core.named_key(_fingerprint(ns), name)
