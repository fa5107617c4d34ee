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


def manifest(segments, flags=0, tokens=0, tag=0, positions=(), assets=(), header_extra=b"",
             segment_extra=b"", trailer=b""):
    body = b""
    for kind, codec, first, count, logical, stored, checksum in segments:
        body += struct.pack("<BBHHHQQQ", kind, 0, codec, first, count, logical, stored, checksum)
        body += segment_extra
    body += b"".join(struct.pack("<I", p) for p in positions) + b"".join(assets) + trailer
    header_bytes = 48 + len(header_extra)
    head = b"PSKM" + struct.pack("<HHIHHIIQII", 1, header_bytes, header_bytes + len(body),
                                 32 + len(segment_extra), len(segments), flags, tokens, tag,
                                 len(positions), len(assets))
    checksum = xxh3(head + bytes(8) + header_extra + body)
    return (head + struct.pack("<Q", checksum) + header_extra + body).hex()


def manifests():
    key = hashlib.sha256(b"golden").digest()
    payload = bytes(range(256)) * 16
    plain = [(0, 0, 0, 0, 4096, 4096, chunk_checksum(key, payload))]
    layered = [(1, 0, layer, 1, 1000 + layer, 1000 + layer, 0x1111111111111111 * (layer + 1))
               for layer in range(4)]
    planes = [(2, 3, 0, 32, 1 << 20, 1 << 19, 1), (3, 4, 0, 32, 1 << 20, 1 << 18, 2),
              (6, 0, 0, 0, 4096, 4096, 3)]
    asset = hashlib.sha256(b"asset").digest()
    return {
        "plain": manifest(plain, tokens=256),
        "layered": manifest(layered, tokens=256, tag=0x0123456789ABCDEF),
        "planes": manifest(planes, flags=5, tokens=3, positions=[7, 9, 4294967295],
                           assets=[asset]),
        "later": manifest(plain, tokens=256, header_extra=b"new header field",
                          segment_extra=b"8 bytes!", trailer=b"a new list"),
    }


FILES = {"manifests.json": manifests}


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
