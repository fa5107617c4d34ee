"""Keeps blocks from being reused while a store still reads them.

A store gathers blocks on another thread, after the step that filled them, while the engine may
finish, preempt or trim the request at any time. So the scheduler's half takes a reference of its
own on every block of a store, exactly as another request with the same prefix would, and gives it
back when every rank has reported the store done. Nothing has to wait, and no request is delayed.

What is pinned is bounded: beyond the limit nothing more is stored until something comes back.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class _Pinned:
    blocks: list[Any]
    since: float
    ranks: int = 0


class BlockPins:
    """Pinned blocks by store job. Not thread-safe: used by the scheduler's thread alone."""

    def __init__(self, ranks: int, percent: float) -> None:
        self._ranks = ranks
        self._percent = percent
        self._pool: Any = None
        self._limit = 0
        self._jobs: dict[int, _Pinned] = {}
        self._count = 0

    def bind(self, pool: Any) -> None:
        self._pool = pool
        self._limit = int(pool.num_gpu_blocks * self._percent / 100)

    @property
    def ranks(self) -> int:
        return self._ranks

    def set_ranks(self, ranks: int) -> None:
        self._ranks = ranks

    @property
    def count(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """How many more blocks may be pinned; 0 before bind()."""
        return max(0, self._limit - self._count)

    def holding_back(self, now: float) -> dict[int, float]:
        """The jobs with a block that is no request's any more, so that it is free once it is stored,
        and how old they are."""
        return {
            job_id: now - job.since
            for job_id, job in self._jobs.items()
            if any(block.ref_cnt == 1 for block in job.blocks)
        }

    def pin(self, job_id: int, block_ids: list[int], now: float) -> None:
        blocks = [self._pool.blocks[block_id] for block_id in block_ids]
        self._pool.touch(blocks)
        self._jobs[job_id] = _Pinned(blocks, now)
        self._count += len(blocks)

    def rank_done(self, job_id: int, ranks: int) -> bool:
        """`ranks` more ranks have reported; True when all have and the blocks were given back."""
        job = self._jobs.get(job_id)
        if job is None:
            return False
        job.ranks += ranks
        if job.ranks < self._ranks:
            return False
        del self._jobs[job_id]
        self._count -= len(job.blocks)
        # The pool evicts in the order given: the tail of a prefix goes before its head.
        self._pool.free_blocks(reversed(job.blocks))
        return True
