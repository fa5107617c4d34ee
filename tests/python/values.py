"""Values that say which key and version they belong to, so that wrong bytes are recognised."""

import hashlib
import struct
import zlib

_LINE = 64
_HEAD = struct.Struct("<16sQQQ")  # Hash of the key, version, number of the line, length.


def value(key: bytes, version: int, size: int) -> bytes:
    """``size`` bytes; every line of 64 holds key, version, its number, the length and a CRC."""
    name = hashlib.sha256(key).digest()[:16]
    out = bytearray()
    for number in range(-(-size // _LINE)):
        head = _HEAD.pack(name, version, number, size)
        line = head + zlib.crc32(head).to_bytes(4, "little")
        out += line.ljust(_LINE, bytes([version & 0xFF]))
    return bytes(out[:size])


def check(data: bytes, key: bytes, size: int) -> str:
    """``"OK 3"`` (the version), ``"SHORT"``, ``"TORN"``, ``"WRONGKEY"`` or ``"GARBAGE"``."""
    if len(data) != size:
        return "SHORT"
    if size < _LINE:
        return "OK ?" if any(data == value(key, v, size) for v in range(16)) else "GARBAGE"
    name, version, _, _ = _HEAD.unpack_from(data)
    if bytes(data) == value(key, version, size):
        return f"OK {version}"
    if zlib.crc32(data[: _HEAD.size]) != int.from_bytes(
        data[_HEAD.size : _HEAD.size + 4], "little"
    ):
        return "GARBAGE"
    return "TORN" if name == hashlib.sha256(key).digest()[:16] else "WRONGKEY"
