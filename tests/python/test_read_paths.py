"""Every way to read a value in Python gives the same answer to the same fault."""

import pathlib
import re

import penstock
import pytest
from penstock import Code
from values import value

SIZE = 100_000


def flip_in_memory_of(pid: int, needle: bytes, at: int) -> int:
    """Flips a bit ``at`` bytes into every copy of ``needle``'s first line in the arena of a process."""
    flipped = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw.. .*memfd:", line)
            if not found:
                continue
            begin, end = (int(n, 16) for n in found.groups())
            memory.seek(begin)
            content = memory.read(end - begin)
            place = content.find(needle[:64])
            while place >= 0:
                memory.seek(begin + place + at)
                byte = memory.read(1)[0]
                memory.seek(begin + place + at)
                memory.write(bytes([byte ^ 4]))
                flipped += 1
                place = content.find(needle[:64], place + 1)
    return flipped


def by_get(client, ns, key, room):
    try:
        return Code.OK, client.get(ns, key)
    except penstock.PenstockError as error:
        return error.code, None


def by_get_into(client, ns, key, room):
    buffer = bytearray(b"\xa5" * room)
    try:
        size = client.get(ns, key, buffer)
        return Code.OK, bytes(buffer[:size])
    except penstock.PenstockError as error:
        return error.code, None


def by_get_async(client, ns, key, room):
    buffer = bytearray(b"\xa5" * room)
    try:
        size = client.get_async(ns, key, buffer).result()
        return Code.OK, bytes(buffer[:size])
    except penstock.PenstockError as error:
        return error.code, None


def by_get_many(client, ns, key, room):
    good = penstock.named_key(ns, "good")
    before, got, behind = client.get_many(ns, [good, key, good])
    assert before.data == behind.data == value(good, 1, SIZE)
    return got.code, got.data


def by_get_many_into(client, ns, key, room):
    good = penstock.named_key(ns, "good")
    rooms = [bytearray(SIZE), bytearray(room), bytearray(SIZE)]
    before, got, behind = client.get_many(ns, [good, key, good], rooms)
    assert before.code == behind.code == Code.OK
    assert rooms[0] == rooms[2] == value(good, 1, SIZE)
    return got.code, bytes(rooms[1]) if got.code == Code.OK else None


PATHS = [by_get, by_get_into, by_get_async, by_get_many, by_get_many_into]


@pytest.fixture
def world(daemon):
    with penstock.Client(daemon.unix) as client:
        assert client.wait_connected(10)
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        good = penstock.named_key(ns, "good")
        client.put(ns, good, value(good, 1, SIZE))
        yield daemon, client, ns


def put(client, ns, name):
    key = penstock.named_key(ns, name)
    client.put(ns, key, value(key, 1, SIZE))
    return key


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_a_flipped_bit_is_a_mismatch_on_every_path(world, path):
    daemon, client, ns = world
    key = put(client, ns, "damaged")
    assert path(client, ns, key, SIZE) == (Code.OK, value(key, 1, SIZE))
    assert flip_in_memory_of(daemon.process.pid, value(key, 1, SIZE), SIZE - 1000) >= 1
    assert path(client, ns, key, SIZE) == (Code.CHECKSUM_MISMATCH, None)
    assert client.stats()["checksum_failures"] == 1


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_what_is_not_there_is_a_miss_on_every_path(world, path):
    _, client, ns = world
    assert path(client, ns, penstock.named_key(ns, "never"), SIZE) == (Code.MISS, None)
    key = put(client, ns, "dropped")
    client.drop(ns, key)
    assert path(client, ns, key, SIZE) == (Code.MISS, None)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_another_namespace_is_refused_on_every_path(world, path):
    _, client, ns = world
    key = put(client, ns, "mine")
    other = client.namespace(penstock.NamespaceDescriptor(model="another"))
    good = penstock.named_key(other, "good")
    client.put(other, good, value(good, 1, SIZE))
    assert path(client, other, key, SIZE) == (Code.FORMAT_MISMATCH, None)


@pytest.mark.parametrize("path", [by_get_into, by_get_async, by_get_many_into])
def test_too_little_room_is_named_on_every_path(world, path):
    _, client, ns = world
    key = put(client, ns, "large")
    assert path(client, ns, key, SIZE - 1) == (Code.BUFFER_TOO_SMALL, None)
