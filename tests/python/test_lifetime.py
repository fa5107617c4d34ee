"""Who owns memory until when, and what happens to clients when things around them end."""

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import penstock
import pytest
from penstock import Code
from penstockd_process import wait_until
from values import check, value

MODEL = penstock.NamespaceDescriptor(model="m")


@pytest.fixture
def connected(daemon):
    with penstock.Client(daemon.unix) as client:
        assert client.wait_connected(10)
        yield client


def run(code: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


# --- Cancelling ---


def test_a_cancelled_put_stores_the_old_bytes_or_nothing(daemon, connected):
    ns = connected.namespace(MODEL)
    rng = random.Random(1)
    for round_ in range(20):
        key = penstock.named_key(ns, str(round_))
        size = rng.choice([1000, 200_000, 3_000_000])
        buffer = bytearray(value(key, 1, size))
        if round_ % 2:
            daemon.freeze()
        op = connected.put_async(ns, key, buffer, timeout=30)
        op.wait(rng.random() / 100)
        op.cancel()
        assert op.done()
        buffer[:] = b"\xee" * size  # Nothing may read it any more.
        daemon.thaw()
        try:
            got = connected.get(ns, key)
        except penstock.Miss:
            continue
        assert check(got, key, size) == "OK 1"


def test_after_a_cancelled_get_the_buffer_never_changes(daemon, connected):
    ns = connected.namespace(MODEL)
    key = penstock.named_key(ns, "x")
    size = 4 << 20
    connected.put(ns, key, value(key, 1, size))
    rng = random.Random(2)
    for round_ in range(20):
        buffer = bytearray(size)
        if round_ % 2:
            daemon.freeze()
        op = connected.get_async(ns, key, buffer, timeout=30)
        op.wait(rng.random() / 200)
        op.cancel()
        buffer[:] = b"\xa5" * size
        daemon.thaw()
        assert check(connected.get(ns, key), key, size) == "OK 1"  # All that was sent has come.
        assert buffer == b"\xa5" * size


def test_cancelling_takes_about_a_second_at_most(daemon, connected):
    ns = connected.namespace(MODEL)
    daemon.freeze()
    ops = [
        connected.put_async(ns, penstock.named_key(ns, str(i)), bytes(8 << 20), timeout=60)
        for i in range(4)
    ]
    start = time.monotonic()
    for op in ops:
        op.cancel()
    assert time.monotonic() - start < 3
    for op in ops:
        with pytest.raises(penstock.PenstockError) as caught:
            op.result()
        assert caught.value.code == Code.CANCELLED


def test_operations_dropped_at_random_moments_leave_nothing_behind(daemon, connected):
    ns = connected.namespace(MODEL)
    rng = random.Random(3)
    keys = [penstock.named_key(ns, str(i)) for i in range(8)]
    for key in keys:
        connected.put(ns, key, value(key, 1, 100_000))
    for _ in range(300):
        key = rng.choice(keys)
        if rng.random() < 0.5:
            op = connected.get_async(ns, key, bytearray(100_000))
        else:
            op = connected.put_async(ns, key, value(key, 1, 100_000), replace=True)
        if rng.random() < 0.5:
            op.wait(rng.random() / 1000)
        if rng.random() < 0.5:
            op.cancel()
        del op
    assert connected.stats()["in_flight"] == 0
    for key, result in zip(keys, connected.get_many(ns, keys)):
        assert check(result.data, key, 100_000) == "OK 1"


def test_an_operation_outlives_the_client_variable(daemon):
    client = penstock.Client(daemon.unix)
    client.wait_connected(10)
    ns = client.namespace(MODEL)
    op = client.put_async(ns, penstock.named_key(ns, "x"), b"x")
    del client
    gc.collect()
    assert op.result(10) == Code.OK


def test_closing_a_client_ends_its_operations(daemon):
    client = penstock.Client(daemon.unix)
    client.wait_connected(10)
    ns = client.namespace(MODEL)
    key = penstock.named_key(ns, "x")
    daemon.freeze()
    buffer = bytearray(1 << 20)
    op = client.put_async(ns, key, buffer, timeout=60)
    waiting = threading.Thread(target=op.wait)
    waiting.start()
    client.close()
    waiting.join(5)
    assert not waiting.is_alive() and op.done()
    buffer.clear()
    client.close()
    assert not client.connected and client.stats()["last_error"] == "the client is closed"
    assert not client.wait_connected(0)
    with pytest.raises(penstock.Disconnected, match="closed"):
        client.get(ns, key)


def test_closing_while_other_threads_use_the_client(daemon):
    for _ in range(10):
        client = penstock.Client(daemon.unix)
        client.wait_connected(10)
        ns = client.namespace(MODEL)
        surprises = []

        def work(client=client, ns=ns, surprises=surprises):
            i = 0
            while True:
                i += 1
                try:
                    client.put(ns, penstock.named_key(ns, str(i % 50)), bytes(1000))
                except penstock.PenstockError as error:
                    if error.code not in (Code.DISCONNECTED, Code.CANCELLED):
                        surprises.append(error)
                    return

        threads = [threading.Thread(target=work) for _ in range(4)]
        threads.append(threading.Thread(target=client.wait_connected, args=(30,)))
        for thread in threads:
            thread.start()
        client.ping()
        client.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert surprises == []


# --- Threads and signals ---


def test_other_threads_run_while_one_waits(daemon, connected):
    ns = connected.namespace(MODEL)
    daemon.freeze()
    op = connected.put_async(ns, penstock.named_key(ns, "x"), bytes(1 << 20), timeout=30)
    steps = 0
    stop = threading.Event()

    def count():
        nonlocal steps
        while not stop.is_set():
            steps += 1

    counting = threading.Thread(target=count)
    counting.start()
    assert not op.wait(0.5)
    stop.set()
    counting.join()
    assert steps > 10_000
    op.cancel()


def test_a_signal_ends_a_wait_and_leaves_the_operation_alone(daemon, connected):
    ns = connected.namespace(MODEL)
    key = penstock.named_key(ns, "x")
    daemon.freeze()
    op = connected.put_async(ns, key, b"x", timeout=30)

    def ring(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            op.result()
        assert time.monotonic() - start < 2
    finally:
        signal.signal(signal.SIGALRM, before)
    daemon.thaw()
    assert op.result(10) == Code.OK


def test_a_wait_that_times_out_leaves_the_operation_alone(daemon, connected):
    ns = connected.namespace(MODEL)
    daemon.freeze()
    op = connected.put_async(ns, penstock.named_key(ns, "x"), b"x", timeout=30)
    with pytest.raises(TimeoutError, match="goes on"):
        op.result(0.05)
    assert not op.wait(0) and not op.done()
    daemon.thaw()
    assert op.result(10) == Code.OK


def test_a_deadline_ends_an_operation_without_anybody_waiting(daemon, connected):
    ns = connected.namespace(MODEL)
    daemon.freeze()
    op = connected.put_async(ns, penstock.named_key(ns, "x"), b"x", timeout=0.3)
    wait_until(op.done, 3)
    with pytest.raises(penstock.DeadlineExceeded):
        op.result()


def test_an_idle_client_uses_no_processor(daemon):
    done = run(
        """
        import sys, threading, time, penstock
        clients = [penstock.Client(sys.argv[1]) for _ in range(4)]
        assert all(client.wait_connected(10) for client in clients)
        clients.append(penstock.Client("unix:///nonexistent/penstock.sock"))
        quiet = threading.Event()
        quiet.wait(0.5)
        start, used = time.monotonic(), time.process_time()
        quiet.wait(3)
        print((time.process_time() - used) / (time.monotonic() - start))
        """,
        daemon.unix,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.01


# --- Processes ---


def test_a_killed_and_restarted_daemon_is_found_again(daemon, connected):
    ns = connected.namespace(MODEL)
    key = penstock.named_key(ns, "x")
    connected.put(ns, key, b"before")
    first = connected.incarnation
    pages = penstock.PageStore(connected)
    storage = pages.register_buffer(bytearray(4096))
    group = pages.add_group(ns, 1, [penstock.PageView(storage, 0, 64, 64, 0)])
    for _ in range(3):
        daemon.kill()
        wait_until(lambda: not connected.connected, 5)
        start = time.monotonic()
        with pytest.raises(penstock.Disconnected):
            connected.get(ns, key, timeout=2)
        assert time.monotonic() - start < 2
        daemon.start()
        assert connected.wait_connected(5)
        assert connected.incarnation not in (0, first)
        with pytest.raises(penstock.Miss):
            connected.get(ns, key)
        assert connected.put(ns, key, b"after") == Code.OK
        assert connected.get(ns, key) == b"after"
        page = penstock.PageChunk(group, penstock.named_key(ns, "page"), [3])
        assert pages.store([page]).result() == [Code.OK]
        assert pages.load([page]).result() == [Code.OK]
    assert connected.stats()["connects"] == 4


def test_a_daemon_killed_in_the_middle_gives_a_code_not_a_hang(daemon, connected):
    ns = connected.namespace(MODEL)
    keys = [penstock.named_key(ns, str(i)) for i in range(16)]
    data = {key: value(key, 1, 2 << 20) for key in keys}
    assert connected.put_many(ns, list(data.items()), timeout=30) == [Code.OK] * 16
    op = connected.get_many_async(ns, keys, [bytearray(2 << 20) for _ in keys], timeout=30)
    daemon.kill()
    results = op.result(10)
    assert {r.code for r in results} <= {Code.OK, Code.DISCONNECTED}


def test_a_client_of_the_parent_is_refused_in_a_forked_child_and_harmless(daemon):
    done = run(
        """
        import os, sys, penstock
        client = penstock.Client(sys.argv[1])
        client.wait_connected(10)
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        key = penstock.named_key(ns, "x")
        client.put(ns, key, b"x")
        pages = penstock.PageStore(client)
        pages.register_buffer(bytearray(4096))
        op = client.get_async(ns, key, bytearray(1))
        child = os.fork()
        if child == 0:
            try:
                client.get(ns, key)
            except penstock.PenstockError as error:
                assert error.code == penstock.Code.FENCED, error
            else:
                os._exit(3)
            client.close()
            with penstock.Client(sys.argv[1]) as own:
                assert own.wait_connected(10)
                assert own.get(own.namespace(ns.descriptor), key) == b"x"
            del op, pages, client
            sys.exit(0)  # With everything that happens at exit.
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert op.result(10) == 1 and client.get(ns, key) == b"x"
        """,
        daemon.unix,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "client.close()", "del client"])
def test_a_process_ends_although_operations_wait(daemon, ending):
    """Also those that daemon threads wait for."""
    code = f"""
    import os, signal, sys, threading, penstock
    # Python itself aborts when a daemon thread is writing to stderr as the process ends.
    threading.excepthook = lambda _: None
    client = penstock.Client(sys.argv[1])
    client.wait_connected(10)
    ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    ops = [client.put_async(ns, penstock.named_key(ns, str(i)), bytes(1 << 20), timeout=300)
           for i in range(4)]
    for op in ops:
        threading.Thread(target=op.wait, daemon=True).start()
    threading.Thread(target=client.ping, args=(300,), daemon=True).start()
    threading.Thread(target=client.wait_connected, args=(300,), daemon=True).start()
    {ending}
    """
    try:
        done = run(code, daemon.unix, str(daemon.process.pid), timeout=30)
    finally:
        daemon.thaw()
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_a_killed_client_leaves_the_daemon_working(daemon, connected):
    ns = connected.namespace(MODEL)
    for _ in range(3):
        victim = subprocess.Popen(
            [
                sys.executable, "-c",
                textwrap.dedent(
                    """
                    import sys, penstock
                    client = penstock.Client(sys.argv[1])
                    client.wait_connected(10)
                    ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
                    print("ready", flush=True)
                    i = 0
                    while True:
                        client.put(ns, penstock.named_key(ns, str(i % 4)), bytes(4 << 20), replace=True)
                        i += 1
                    """
                ),
                daemon.unix,
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert victim.stdout.readline() == b"ready\n"
        connected.ping()
        victim.kill()
        victim.wait()
        victim.stdout.close()
        key = penstock.named_key(ns, "mine")
        connected.put(ns, key, b"x", replace=True)
        assert connected.get(ns, key) == b"x"


def test_nothing_leaks_over_many_clients(daemon):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def threads():
        return len(os.listdir("/proc/self/task"))

    def one():
        with penstock.Client(daemon.unix) as client:
            client.wait_connected(10)
            ns = client.namespace(MODEL)
            client.put(ns, penstock.named_key(ns, "x"), b"x", replace=True)

    one()
    before = descriptors(), threads()
    for _ in range(20):
        one()
    assert (descriptors(), threads()) == before
