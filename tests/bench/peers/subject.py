"""The process that is timed: one client of one store goes through all experiments.

  subject.py PLAN      PLAN is JSON from run.py; the last line printed is JSON, too

Latencies are of requests, a batch being one. What comes back is compared with what was put.
"""

import ctypes
import json
import mmap
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

WARM = 0.2  # Of the time of a measurement, not counted.
KEYS = 2048  # Values that are read.


class Subject:
    """A client. Slots of memory are numbered; put() and get() use those of the request's number."""

    def __init__(self, max_bytes: int, slots: int):
        self.slots = slots
        self.max_bytes = max_bytes
        # Whole pages, as an engine's tensors are: kernels copy to odd addresses at half the speed.
        self.memory = mmap.mmap(-1, slots * max_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.memory)

    def slot(self, number: int, size: int) -> memoryview:
        at = number % self.slots * self.max_bytes
        return self.view[at : at + size]

    def slots_of(self, request: int, count: int, size: int) -> list[memoryview]:
        return [self.slot(request * count + i, size) for i in range(count)]

    def keys(self, names: list[str]) -> list:
        """What the store calls the values: an engine has that ready, it is not timed for reads."""
        return names

    # These begin a request; finish() waits for it, where it is not over by then.
    def put(self, keys: list, slots: list[memoryview]) -> object:
        raise NotImplementedError

    def get(self, keys: list, slots: list[memoryview]) -> object:
        raise NotImplementedError

    def exists(self, keys: list) -> object:
        raise NotImplementedError

    def finish(self, pending: object) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        """Makes room after puts."""

    def flight(self, start: Callable[[int], object], in_flight: int, seconds: float) -> list[tuple]:
        """Keeps `in_flight` requests on their way; returns when each began and ended."""
        raise NotImplementedError


class PenstockSubject(Subject):
    def __init__(self, plan: dict, max_bytes: int, slots: int):
        super().__init__(max_bytes, slots)
        import penstock

        self.p = penstock
        self.client = penstock.Client(
            address=plan["address"], wire=plan["wire"], max_in_flight=1024
        )
        assert self.client.wait_connected(10), self.client.stats()["last_error"]
        assert self.client.stats()["wire"] == plan["wire"]
        self.ns = self.client.namespace(
            penstock.NamespaceDescriptor(model="peers", layout="bytes.v1")
        )

    def keys(self, names: list[str]) -> list[bytes]:
        return [self.p.named_key(self.ns, name) for name in names]

    def put(self, keys, slots):
        return self.client.put_many_async(self.ns, list(zip(keys, slots)))

    def get(self, keys, slots):
        return self.client.get_many_async(self.ns, keys, slots)

    def exists(self, keys):
        return self.client.match([self.p.MatchGroup(self.ns, keys)])

    def finish(self, pending):
        result = pending.result()
        if isinstance(result, self.p.MatchResult):
            assert result.code == self.p.Code.OK and result.chunks > 0, result
            return
        for one in result:
            code = getattr(one, "code", one)
            assert code in (self.p.Code.OK, self.p.Code.ALREADY_EXISTS), code

    def flight(self, start, in_flight, seconds):
        times, ring, number = [], deque(), 0
        end = time.perf_counter() + seconds
        while True:
            now = time.perf_counter()
            if now < end:
                ring.append((now, start(number)))
                number += 1
                if len(ring) < in_flight:
                    continue
            elif not ring:
                return times
            began, pending = ring.popleft()
            self.finish(pending)
            times.append((began, time.perf_counter()))


class MooncakeSubject(Subject):
    def __init__(self, plan: dict, max_bytes: int, slots: int):
        super().__init__(max_bytes, slots)
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        code = self.store.setup(
            plan["host"], plan["metadata"], plan["segment"], 64 << 20, "tcp", "", plan["master"]
        )
        assert code == 0, f"setup: {code}"
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert self.store.register_buffer(self.base, len(self.memory)) == 0

    def pointers(self, slots):
        return [ctypes.addressof(ctypes.c_char.from_buffer(s)) for s in slots], [
            len(s) for s in slots
        ]

    def put(self, keys, slots):
        pointers, sizes = self.pointers(slots)
        codes = self.store.batch_put_from(keys, pointers, sizes)
        assert all(code == 0 for code in codes), codes

    def get(self, keys, slots):
        pointers, sizes = self.pointers(slots)
        got = self.store.batch_get_into(keys, pointers, sizes)
        assert got == sizes, got

    def exists(self, keys):
        if len(keys) == 1:
            assert self.store.is_exist(keys[0]) == 1
        else:
            assert all(found == 1 for found in self.store.batch_is_exist(keys))

    def finish(self, pending):
        pass

    def clear(self):
        self.store.remove_all()

    def flight(self, start, in_flight, seconds):
        times, lock, numbers = [], threading.Lock(), iter(range(1 << 62))
        end = time.perf_counter() + seconds

        def work() -> None:
            mine = []
            while (began := time.perf_counter()) < end:
                with lock:
                    number = next(numbers)
                start(number)
                mine.append((began, time.perf_counter()))
            with lock:
                times.extend(mine)

        threads = [threading.Thread(target=work) for _ in range(in_flight)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return times


class RedisSubject(Subject):
    """Requests in flight are those of one pipeline."""

    def __init__(self, plan: dict, max_bytes: int, slots: int):
        super().__init__(max_bytes, slots)
        import redis

        self.redis = redis.Redis(port=plan["port"])
        self.pipe = self.redis.pipeline(transaction=False)
        self.landing: list[list[memoryview]] = []

    def put(self, keys, slots):
        self.pipe.mset({key: bytes(slot) for key, slot in zip(keys, slots)})
        return lambda result: result is True

    def get(self, keys, slots):
        self.pipe.mget(keys)

        def land(values) -> bool:
            for value, slot in zip(values, slots):
                slot[:] = value
            return True

        return land

    def exists(self, keys):
        self.pipe.exists(*keys)
        return lambda result: result == len(keys)

    def clear(self):
        self.redis.flushall()

    def finish(self, pending):
        for result, take in zip(self.pipe.execute(), pending):
            assert take(result), result

    def flight(self, start, in_flight, seconds):
        times, number = [], 0
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            pending = [start(number + i) for i in range(in_flight)]
            number += in_flight
            self.finish(pending)
            done = time.perf_counter()
            times.extend([(began, done)] * in_flight)
        return times


KINDS = {"penstock": PenstockSubject, "mooncake": MooncakeSubject, "redis": RedisSubject}


def figures(times: list[tuple[float, float]]) -> dict[str, float]:
    first, last = min(t[0] for t in times), max(t[1] for t in times)
    counted_from = first + (last - first) * WARM
    counted = [t for t in times if t[1] >= counted_from] or times
    latencies = sorted(end - began for began, end in counted)

    def percentile(share: float) -> float:
        return latencies[min(len(latencies) - 1, int(share * len(latencies)))] * 1e6

    return {
        "per_second": len(counted) / (last - counted_from),
        "p50_us": percentile(0.5),
        "p99_us": percentile(0.99),
        "p999_us": percentile(0.999),
        "requests": len(counted),
    }


def fill(subject: Subject, size: int, label: str) -> list:
    """Puts the values that are read, each with its own content."""
    keys = subject.keys([f"{label}-{size}-{i}" for i in range(KEYS)])
    for at in range(0, KEYS, 32):
        slots = [subject.slot(i, size) for i in range(32)]
        for i, slot in enumerate(slots):
            slot[:] = bytes([(at + i) % 251]) * size
        pending = subject.put(keys[at : at + 32], slots)
        subject.finish([pending] if callable(pending) else pending)
    return keys


def check(subject: Subject, keys: list, size: int) -> None:
    for number in (0, 7, KEYS - 1):
        slot = subject.slot(0, size)
        slot[:] = b"\xff" * size
        pending = subject.get([keys[number]], [slot])
        subject.finish([pending] if callable(pending) else pending)
        assert bytes(slot) == bytes([number % 251]) * size, f"wrong bytes of value {number}"


def run_one(subject: Subject, experiment: list, in_flight: int, seconds: float, label: str) -> dict:
    operation, count, size = experiment
    if operation == "put":

        def put(n: int) -> object:
            keys = subject.keys([f"{label}-{n}-{i}" for i in range(count)])
            return subject.put(keys, subject.slots_of(n, count, size))

        result = figures(subject.flight(put, in_flight, seconds))
        subject.clear()
        return result
    keys = fill(subject, size, label)
    check(subject, keys, size)

    def chosen(n: int) -> list:
        at = n * count % (KEYS - count + 1)
        return keys[at : at + count]

    def get(n: int) -> object:
        return subject.get(chosen(n), subject.slots_of(n, count, size))

    def exists(n: int) -> object:
        return subject.exists(chosen(n))

    result = figures(subject.flight(get if operation == "get" else exists, in_flight, seconds))
    check(subject, keys, size)
    return result


def main() -> int:
    plan = json.loads(sys.argv[1])
    slots = max(plan["in_flight"]) * 32
    subject = KINDS[plan["contender"]["kind"]](plan["contender"], 65536, slots)
    results: dict = {}
    for name, experiment in plan["experiments"].items():
        results[name] = {
            str(flight): run_one(subject, experiment, flight, plan["seconds"], f"{name}-{flight}")
            for flight in plan["in_flight"]
        }
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
