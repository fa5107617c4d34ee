"""A miss, an error and an empty value never look the same, and batches keep their order."""

import penstock
import pytest
from penstock import Code


def key_of(ns, name) -> bytes:
    return penstock.named_key(ns, str(name))


def outcome(call):
    """What a caller can tell: the value, or the exception's type and code."""
    try:
        return ("value", call())
    except penstock.PenstockError as error:
        return (type(error).__name__, error.code)


def test_each_outcome_of_a_get_is_its_own(make_daemon):
    daemon = make_daemon("64MiB")
    with penstock.Client(daemon.unix) as client:
        assert client.wait_connected(10)
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        other = client.namespace(penstock.NamespaceDescriptor(model="n"))
        empty, full, deleted = (key_of(ns, n) for n in ("empty", "full", "deleted"))
        client.put(ns, empty, b"")
        client.put(ns, full, b"12345")
        client.put(ns, deleted, b"x")
        client.drop(ns, deleted)
        seen = {
            "absent": outcome(lambda: client.get(ns, key_of(ns, "absent"))),
            "deleted": outcome(lambda: client.get(ns, deleted)),
            "other namespace": outcome(lambda: client.get(other, full)),
            "empty": outcome(lambda: client.get(ns, empty)),
            "full": outcome(lambda: client.get(ns, full)),
            "too small": outcome(lambda: client.get(ns, full, bytearray(4))),
            "no room": outcome(lambda: client.get(ns, full, bytearray(0))),
            "read-only": outcome(lambda: client.get(ns, full, bytes(5))),
        }
        daemon.freeze()
        seen["frozen"] = outcome(lambda: client.get(ns, full, timeout=0.3))
        daemon.thaw()
        daemon.kill()
        seen["down"] = outcome(lambda: client.get(ns, full, timeout=2))
    assert seen == {
        "absent": ("Miss", Code.MISS),
        "deleted": ("Miss", Code.MISS),
        "other namespace": seen["other namespace"],
        "empty": ("value", b""),
        "full": ("value", b"12345"),
        "too small": ("PenstockError", Code.BUFFER_TOO_SMALL),
        "no room": ("PenstockError", Code.BUFFER_TOO_SMALL),
        "read-only": ("BadBuffer", Code.BAD_BUFFER),
        "frozen": ("DeadlineExceeded", Code.DEADLINE_EXCEEDED),
        "down": ("Disconnected", Code.DISCONNECTED),
    }
    assert seen["other namespace"][1] in (Code.MISS, Code.FORMAT_MISMATCH)


def test_batches_answer_in_the_order_asked_with_duplicates_and_misses(client, ns):
    keys = {name: key_of(ns, name) for name in ("a", "b", "empty", "long", "absent")}
    values = {"a": b"aa", "b": b"bbb", "empty": b"", "long": bytes(200_000)}
    codes = client.put_many(ns, [(keys[name], data) for name, data in values.items()])
    assert codes == [Code.OK] * 4
    again = client.put_many(ns, [(keys["a"], b"zz"), (key_of(ns, "new"), b"n"), (keys["b"], b"z")])
    assert again == [Code.ALREADY_EXISTS, Code.OK, Code.ALREADY_EXISTS]

    asked = ["b", "absent", "a", "long", "empty", "b", "absent", "long"]
    got = client.get_many(ns, [keys[name] for name in asked])
    assert [r.data for r in got] == [values.get(name) for name in asked]
    assert [r.code for r in got] == [Code.OK if n in values else Code.MISS for n in asked]
    assert [r.size for r in got if r.code == Code.OK] == [
        len(values[n]) for n in asked if n in values
    ]

    room = [bytearray(3), bytearray(3), bytearray(1), bytearray(8), bytearray(1)]
    asked = ["b", "absent", "a", "long", "empty"]
    got = client.get_many(ns, [keys[name] for name in asked], room)
    assert [r.code for r in got] == [
        Code.OK, Code.MISS, Code.BUFFER_TOO_SMALL, Code.BUFFER_TOO_SMALL, Code.OK,
    ]  # fmt: skip
    assert [got[2].size, got[3].size, got[4].size] == [2, 200_000, 0]
    assert room[0] == b"bbb" and all(r.data is None for r in got)


def test_a_batch_that_puts_one_key_twice_stores_one_of_the_values(client, ns):
    key = key_of(ns, "twice")
    codes = client.put_many(ns, [(key, b"one"), (key, b"two")])
    assert len(codes) == 2 and Code.OK in codes
    assert client.get(ns, key) in (b"one", b"two")


def test_an_empty_batch_is_an_empty_answer(client, ns):
    assert client.get_many(ns, []) == []
    assert client.get_many(ns, [], []) == []
    assert client.put_many(ns, []) == []
    assert client.drop(ns, []) == client.touch(ns, []) == client.pin(ns, [], ttl=1) == []
    assert client.match([]).result().chunks == 0


def test_batches_while_the_daemon_is_away_have_one_code_an_item():
    with penstock.Client("unix:///nonexistent/penstock.sock") as client:
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        keys = [key_of(ns, i) for i in range(3)]
        down = [Code.DISCONNECTED] * 3
        assert [r.code for r in client.get_many(ns, keys, timeout=2)] == down
        assert client.put_many(ns, [(key, b"x") for key in keys], timeout=2) == down
        assert client.drop(ns, keys, timeout=2) == down
        result = client.match([penstock.MatchGroup(ns, keys)], timeout=2).result()
        assert (result.code, result.chunks) == (Code.DISCONNECTED, 0)
        assert result.message
        with pytest.raises(penstock.Disconnected):
            client.get(ns, keys[0], timeout=2)
        with pytest.raises(penstock.Disconnected):
            client.ping(timeout=2)
        assert not client.connected and client.incarnation == 0
        assert not client.wait_connected(0.1)
        assert client.stats()["last_error"]
