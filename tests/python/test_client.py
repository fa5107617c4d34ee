"""The client against a real daemon."""

import threading

import penstock
import pytest
from penstock import Code
from values import check, value


def key_of(ns, name) -> bytes:
    return penstock.named_key(ns, str(name))


def chain_of(ns, count, salt=b"") -> list[bytes]:
    return penstock.prefix_keys(ns, [salt + bytes([i]) for i in range(count)])


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4096, 65536, 65537, 1 << 20, 5_000_001])
def test_a_value_comes_back_as_it_was(client, ns, size):
    key = key_of(ns, size)
    assert client.put(ns, key, value(key, 1, size)) == Code.OK
    got = client.get(ns, key)
    assert type(got) is bytes and check(got, key, size) in ("OK 1", "OK ?")
    target = bytearray(b"\xa5" * (size + 64))
    assert client.get(ns, key, target) == size
    assert bytes(target[:size]) == got and target[size:] == b"\xa5" * 64


def test_the_tcp_address_serves_too(shared_daemon, ns, client):
    key = key_of(ns, "x")
    client.put(ns, key, b"over unix")
    with penstock.Client(shared_daemon.tcp, wire="tcp") as other:
        assert other.wait_connected(10)
        assert other.stats()["wire"] == "tcp"
        assert other.get(other.namespace(ns.descriptor), key) == b"over unix"


def test_the_first_value_wins_unless_it_is_replaced(client, ns):
    key = key_of(ns, "x")
    assert client.put(ns, key, b"one") == Code.OK
    assert client.put(ns, key, b"two") == Code.ALREADY_EXISTS
    assert client.get(ns, key) == b"one"
    assert client.put(ns, key, b"three", replace=True) == Code.OK
    assert client.get(ns, key) == b"three"


def test_stat_tells_what_is_stored(client, ns):
    parent, key = chain_of(ns, 2)
    client.put(ns, parent, b"p" * 10, token_count=256)
    client.put(ns, key, b"c" * 20, parent)
    stat = client.stat(ns, parent)
    assert (stat.stored_bytes, stat.token_count, stat.children, stat.pins) == (10, 256, 1, 0)
    assert stat.tier == "dram" and 0 <= stat.idle_seconds < 60
    with pytest.raises(penstock.Miss):
        client.stat(ns, key_of(ns, "absent"))


def test_drop_pin_and_touch_answer_for_each_key(client, ns):
    there, gone = key_of(ns, "there"), key_of(ns, "gone")
    client.put(ns, there, b"x")
    # Nothing behind the first that is missing: a tail without its head is of no use.
    assert client.touch(ns, [there, there, gone, there]) == [Code.OK] * 2 + [Code.MISS] * 2
    assert client.pin(ns, [gone, there], ttl=60) == [Code.MISS, Code.OK]
    assert client.stat(ns, there).pins == 1
    assert client.pin(ns, there, ttl=0) == [Code.OK]
    assert client.stat(ns, there).pins == 0
    assert client.drop(ns, [gone, there]) == [Code.MISS, Code.OK]
    with pytest.raises(penstock.Miss):
        client.get(ns, there)


def test_match_is_the_longest_stored_prefix(client, ns):
    keys = chain_of(ns, 8)
    for i in (0, 1, 2, 4):
        client.put(ns, keys[i], bytes(100), keys[i - 1] if i else None)
    result = client.match([penstock.MatchGroup(ns, keys)]).result()
    assert (result.code, result.chunks, result.bytes, result.reservation) == (Code.OK, 3, 300, 0)
    assert client.match([penstock.MatchGroup(ns, chain_of(ns, 8, b"other"))]).result().chunks == 0
    assert client.match([penstock.MatchGroup(ns, [])]).result().chunks == 0


def test_match_needs_only_the_window_of_a_sliding_group(client, ns):
    import dataclasses

    sliding = client.namespace(dataclasses.replace(ns.descriptor, group_kind="sliding:2", group=1))
    full_keys, sliding_keys = chain_of(ns, 6), chain_of(sliding, 6)
    for key in full_keys[:5]:
        client.put(ns, key, bytes(10))
    for key in sliding_keys[2:4]:
        client.put(sliding, key, bytes(10))
    groups = [penstock.MatchGroup(ns, full_keys), penstock.MatchGroup(sliding, sliding_keys, 2)]
    result = client.match(groups).result()
    assert (result.chunks, result.bytes) == (4, 60)


def test_a_reservation_is_good_for_a_fetch_until_it_is_released(client, ns):
    keys = chain_of(ns, 3)
    client.put_many(ns, [(key, value(key, 1, 1000)) for key in keys])
    result = client.match([penstock.MatchGroup(ns, keys)], reserve_ttl=30.0).result()
    assert result.chunks == 3 and result.reservation != 0
    got = client.get_many(ns, keys, reservation=result.reservation)
    assert [check(r.data, k, 1000) for r, k in zip(got, keys)] == ["OK 1"] * 3
    client.release(result.reservation).result()
    with pytest.raises(penstock.PenstockError) as caught:
        client.release(result.reservation).result()
    assert caught.value.code == Code.FENCED


def test_values_made_of_pieces(client, ns):
    key = key_of(ns, "x")
    client.put(ns, key, [b"abc", bytearray(b""), memoryview(b"defgh")])
    assert client.get(ns, key) == b"abcdefgh"
    head, tail = bytearray(3), bytearray(5)
    assert client.get(ns, key, [head, tail]) == 8
    assert (head, tail) == (b"abc", b"defgh")


def test_ping_is_a_round_trip(client):
    assert 0 < client.ping(timeout=5) < 5


def test_an_operation_can_be_asked_waited_for_and_read_again(client, ns):
    key = key_of(ns, "x")
    op = client.put_async(ns, key, b"x")
    assert op.wait(10) and op.wait(0) and op.done()
    assert op.result() == Code.OK and op.result() == Code.OK
    op.cancel()
    assert op.result() == Code.OK
    assert "done" in repr(op)


def test_one_client_serves_many_threads(client, ns):
    failures = []

    def work(number):
        for i in range(30):
            key = key_of(ns, f"{number}/{i}")
            data = value(key, number, 3000)
            if client.put(ns, key, data) != Code.OK or client.get(ns, key) != data:
                failures.append((number, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_stats_count_what_was_done(shared_daemon, ns):
    with penstock.Client(shared_daemon.unix) as client:
        ns = client.namespace(ns.descriptor)
        client.wait_connected(10)
        key = key_of(ns, "counted")
        client.put(ns, key, bytes(1000))
        client.get(ns, key)
        with pytest.raises(penstock.Miss):
            client.get(ns, key_of(ns, "absent"))
        stats = client.stats()
    assert (stats["stored_chunks"], stats["stored_bytes"]) == (1, 1000)
    assert (stats["fetched_chunks"], stats["fetched_bytes"]) == (1, 1000)
    assert stats["missed_chunks"] == 1 and stats["connects"] == 1
    assert stats["connected"] and stats["incarnation"] != 0 and stats["last_error"] == ""


def test_two_namespaces_never_mix_even_under_one_key(client, ns):
    import dataclasses

    for change in (
        {"kv_dtype": "fp8"},
        {"model_revision": "2"},
        {"layout": "other"},
        {"tp_rank": 1, "tp_size": 2},
        {"adapter": "lora"},
        {"adapter_generation": 1},
        {"tenant_salt": "s"},
        {"extension": {}},
    ):
        other = client.namespace(dataclasses.replace(ns.descriptor, **change))
        key = key_of(ns, str(change))
        assert client.put(ns, key, b"of the one") == Code.OK
        with pytest.raises(penstock.PenstockError) as caught:
            client.get(other, key)  # The very same 32 bytes.
        assert caught.value.code in (Code.MISS, Code.FORMAT_MISMATCH)
        assert client.match([penstock.MatchGroup(other, [key])]).result().chunks == 0
        assert client.drop(other, [key])[0] in (Code.MISS, Code.FORMAT_MISMATCH)
        assert client.get(ns, key) == b"of the one"


def test_a_namespace_tells_what_it_is(client):
    descriptor = penstock.NamespaceDescriptor(model="m", tenant="default")
    ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
    assert ns.descriptor == descriptor and ns.fingerprint == descriptor.fingerprint()
    assert ns == client.namespace(descriptor) and hash(ns) == hash(client.namespace(descriptor))
    assert ns != client.namespace(penstock.NamespaceDescriptor(model="n"))
    assert ns.fingerprint[:12] in repr(ns)


@pytest.mark.parametrize("address", ["", "nonsense", "http://x", "tcp://", "tcp://h:99999"])
def test_an_address_that_cannot_be_is_refused_at_once(address):
    with pytest.raises(penstock.InvalidArgument):
        penstock.Client(address)


def test_wrong_arguments_are_refused_before_anything_happens(client, ns):
    key = key_of(ns, "x")
    for call, error in (
        (lambda: client.get(ns, b"short"), penstock.InvalidArgument),
        (lambda: client.get(ns, "k" * 32), TypeError),
        (lambda: client.get(ns.fingerprint, key), TypeError),
        (lambda: client.put(ns, key, "text"), TypeError),
        (lambda: client.put(ns, key, None), TypeError),
        (lambda: client.put(ns, key, [[b"x"]]), TypeError),
        (lambda: client.put(ns, key, b"x", parent=b"short"), penstock.InvalidArgument),
        (lambda: client.put(ns, key, b"x", timeout=float("nan")), ValueError),
        (lambda: client.match([(ns, [key])]), TypeError),
        (lambda: client.match([(ns, [key], -1)]), penstock.InvalidArgument),
        (lambda: client.get_many(ns, [key], [bytearray(1), bytearray(1)]), ValueError),
    ):
        with pytest.raises(error):
            call()
    with pytest.raises(penstock.Miss):
        client.get(ns, key)
