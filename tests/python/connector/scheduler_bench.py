"""The scheduler's half, and as much of an engine as its tests need."""

from __future__ import annotations

import functools

from fake_penstock import Client
from penstock import prefix_key
from penstock_vllm.config import ConnectorConfig
from penstock_vllm.messages import Group, Shape, StoreOutcome, WorkerReport
from penstock_vllm.scheduler import SchedulerSide

FULL = Shape(256, 128, (Group(0, 0, 128, ("a",), "full"),))
HYBRID = Shape(
    256, 128, (Group(0, 512, 128, ("a",), "sliding:512"), Group(1, 0, 128, ("b",), "full"))
)


@functools.cache
def block_hashes(salt, count):
    return [f"{salt}{i}".encode() for i in range(count)]


class Request:
    def __init__(self, name, tokens, prompt=None, salt=""):
        self.request_id = name
        self.num_tokens = tokens
        self.num_prompt_tokens = prompt if prompt is not None else tokens
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.skip_reading_prefix_cache = False
        self.salt = salt

    @property
    def block_hashes(self):
        return block_hashes(self.salt, self.num_tokens // 128)


class Block:
    def __init__(self, number):
        self.block_id = number
        self.ref_cnt = 0


class Pool:
    def __init__(self, blocks=1000):
        self.num_gpu_blocks = blocks
        self.blocks = [Block(i) for i in range(blocks)]
        self.freed = []

    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        for block in blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0
            self.freed.append(block.block_id)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Bench:
    """A SchedulerSide, and what the engine around it would do."""

    def __init__(self, shape=FULL, **extra):
        self.clock = Clock()
        self.pool = Pool()
        extra.setdefault("decline_slow_loads", False)
        self.side = SchedulerSide(
            ConnectorConfig.parse(extra),
            shape,
            Client(),
            suffix_of=lambda request: b"",
            clock=self.clock,
        )
        self.side.pins.bind(self.pool)
        fields = [{"model": "m", "group": group.index} for group in shape.groups]
        self.side.set_namespaces({(0, 0): fields}, [1 << 20] * len(shape.groups))
        self.shape = shape
        self.blocks = {}

    def new_request(self, daemon, stored):
        """A request of 1,000 tokens, of which the daemon has the first `stored` chunks."""
        request = Request("r", 1000)
        self.keep(daemon, request, range(stored))
        self.side.on_new_request(request)
        return request

    def give_blocks(self, request, first=1, null=()):
        count = -(-request.num_tokens // 128)
        self.blocks[request.request_id] = tuple(
            [0 if i in null_of else first + g * 100 + i for i in range(count)]
            for g, null_of in enumerate(null or [()] * len(self.shape.groups))
        )
        return self.blocks[request.request_id]

    def step(self, *scheduled):
        plan = self.side.build_plan(
            [(request.request_id, tokens) for request, tokens in scheduled], self.blocks.get
        )
        for request, tokens in scheduled:
            request.num_computed_tokens += tokens
        return plan

    def stored(self, plan, **outcome):
        outcome = outcome or {"stored": 1}
        report = WorkerReport(
            stores={job.job_id: StoreOutcome(ranks=1, **outcome) for job in plan.stores}
        )
        self.side.update(report, (), ())

    def keep(self, daemon, request, chunks, groups=None):
        """Makes the daemon have the first `chunks` chunks of the request, as if stored before."""
        for namespaces in self.side.lookups._namespaces:
            for group, ns in enumerate(namespaces):
                for chunk in chunks if groups is None or group in groups else ():
                    identity = request.block_hashes[(chunk + 1) * 2 - 1]
                    daemon.chunks[prefix_key(ns, None, identity)] = []
