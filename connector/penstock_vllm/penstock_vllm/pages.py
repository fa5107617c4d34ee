"""Finds out how an engine's KV tensors lie in memory, as bytes and strides.

Nothing is taken from the shape of a tensor but where its blocks are: whatever a block holds inside
is opaque, as long as it is dense. K and V, heads, packed or not, are the engine's business; that
two engines agree on it is what the digest of the geometry in the namespace is for.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class LayoutRefused(ValueError):
    """KV memory of a kind that cannot be stored safely; the text says why."""


class LayerPages(NamedTuple):
    """One layer's pages: block b is `page_bytes` at `offset + b * block_stride` of its storage."""

    data_ptr: int
    """Of the storage."""
    storage_bytes: int
    offset: int
    block_stride: int
    page_bytes: int


def _dense_bytes(tensor: Any, item: int) -> int:
    """Bytes that one block of the tensor spans; raises when there are holes in it."""
    elements = 1
    span = 1
    for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True):
        elements *= size
        if size > 1:
            span += (size - 1) * stride
    if span != elements:
        raise LayoutRefused(
            f"a block of shape {tuple(tensor.shape[1:])} with strides {tensor.stride()[1:]} "
            "is not dense"
        )
    return elements * item


def layer_pages(name: str, tensor: Any, num_blocks: int) -> list[LayerPages]:
    """The pages of one layer's KV tensor: one entry, or one for each kernel block of a block."""
    if isinstance(tensor, (list, tuple)):
        raise LayoutRefused(f"{name}: several state tensors; recurrent layers are not stored")
    if tensor.device.type != "cpu":
        raise LayoutRefused(f"{name}: on device {tensor.device}; only CPU memory is supported")
    if tensor.dim() < 2 or num_blocks <= 0 or tensor.shape[0] % num_blocks != 0:
        raise LayoutRefused(
            f"{name}: the first dimension of {tuple(tensor.shape)} is not {num_blocks} blocks"
        )
    item = tensor.element_size()
    # The kernel may cut a block into smaller ones.
    parts = tensor.shape[0] // num_blocks
    part_bytes = _dense_bytes(tensor, item)
    part_stride = tensor.stride(0) * item
    if part_stride < part_bytes:
        raise LayoutRefused(f"{name}: blocks overlap (stride {part_stride}, size {part_bytes})")
    storage = tensor.untyped_storage()
    offset = tensor.data_ptr() - storage.data_ptr()
    if parts > 1 and part_stride == part_bytes:
        parts, part_bytes, part_stride = 1, part_bytes * parts, part_stride * parts
    pages = [
        LayerPages(
            storage.data_ptr(),
            storage.nbytes(),
            offset + part * part_stride,
            part_stride * parts,
            part_bytes,
        )
        for part in range(parts)
    ]
    last = pages[-1]
    if last.offset + (num_blocks - 1) * last.block_stride + last.page_bytes > last.storage_bytes:
        raise LayoutRefused(f"{name}: blocks reach beyond the storage")
    return pages


def group_pages(
    layer_names: Sequence[str], tensors: Mapping[str, Any], num_blocks: int
) -> list[tuple[int, LayerPages]]:
    """(position of the layer in the group, pages) of every layer, in the group's order."""
    result = []
    for position, name in enumerate(layer_names):
        if name not in tensors:
            raise LayoutRefused(f"the engine registered no KV tensor for {name}")
        result += [(position, pages) for pages in layer_pages(name, tensors[name], num_blocks)]
    _refuse_overlaps(result)
    return result


def _refuse_overlaps(pages: list[tuple[int, LayerPages]]) -> None:
    """Two layers of one group must not share bytes: a load of one would overwrite the other."""
    starts = sorted((p.data_ptr + p.offset, p.page_bytes) for _, p in pages)
    for (start, size), (other, _) in itertools.pairwise(starts):
        if other < start + size:
            raise LayoutRefused("two layers of a group view the same bytes")


def geometry_digest(layer_names: Sequence[str], tensors: Mapping[str, Any]) -> str:
    """What a page of each layer looks like inside: dtype, shape and order of the dimensions.

    Where pages lie does not count: another engine has other addresses and other numbers of blocks.
    """
    digest = hashlib.sha256(b"penstock.vllm.geometry.v1")
    for name in layer_names:
        tensor = tensors[name]
        inner = [
            (size, stride)
            for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
        ]
        digest.update(f"|{name}|{tensor.dtype}|{inner}".encode())
    return digest.hexdigest()[:32]
