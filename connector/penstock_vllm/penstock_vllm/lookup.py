"""Asks the daemon how much of a prompt it has, without ever holding the scheduler up for long."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import penstock

from .config import ConnectorConfig
from .estimate import Breaker, Pause
from .identity import IdentityError
from .messages import Shape

# While other requests are running, a lookup that is not back yet may cost them no more than this.
_BUSY_WAIT_S = 0.000_25
# An answer is used while its reservation lasts, less this part as a margin for the load.
_RESERVATION_MARGIN = 0.5
# What one MATCH may hold (common/protocol/messages.h): the daemon answers more with TOO_LARGE.
MAX_GROUPS = 64
MAX_KEYS = 16384
# How old the knowledge may be whether there is a connection: asking the client takes microseconds.
_CONNECTION_AGE_S = 0.001


def check_fits(ranks: int, groups: int) -> None:
    """Whether one lookup can ask about every group of every rank. Raises IdentityError."""
    if ranks * groups > MAX_GROUPS:
        raise IdentityError(
            f"{ranks} ranks with {groups} KV groups each are {ranks * groups} groups a lookup, of "
            f"which a daemon takes {MAX_GROUPS}: give the engine at most {MAX_GROUPS // groups} "
            "ranks (tensor_parallel_size times pipeline_parallel_size), and run more engines"
        )


@dataclasses.dataclass
class Lookup:
    """One question about one request."""

    asked: int
    started: float
    op: Any = None
    # The answer; None while it is pending.
    chunks: int | None = None
    bytes: int = 0
    reservation: int = 0
    code: int = 0


class LookupService:
    """Questions to the daemon, with the time they may cost and the breaker that ends asking.

    Not thread-safe: used by the scheduler's thread alone.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        shape: Shape,
        client: Any,
        clock: Callable[[], float],
        counters: Counter[str],
    ) -> None:
        self._config = config
        self._shape = shape
        self._client = client
        self._clock = clock
        self._counters = counters
        self._timeout = config.lookup_timeout_ms / 1000
        self._namespaces: list[list[Any]] = []
        self._wait_left = 0.0
        self._ping: Any = None
        self._connected = False
        self._connected_at = -1.0
        self.breaker = Breaker(
            shortest=config.breaker_min_ms / 1000, longest=config.breaker_max_ms / 1000
        )
        self.loads_paused = Pause(
            shortest=config.breaker_min_ms / 1000, longest=config.breaker_max_ms / 1000
        )
        self.new_step(busy=False)

    def set_namespaces(self, namespaces: list[list[Any]]) -> None:
        """For each rank, for each group, a penstock.Namespace. Until then nothing is asked.

        REQUIRES: check_fits() of them.
        """
        self._namespaces = namespaces

    @property
    def usable(self) -> bool:
        """Whether there is any point in asking or storing now. Never blocks."""
        return bool(self._namespaces) and self.connected and self.breaker.closed

    @property
    def connected(self) -> bool:
        now = self._clock()
        if now - self._connected_at > _CONNECTION_AGE_S:
            self._connected = self._client.connected
            self._connected_at = now
        return self._connected

    def new_step(self, busy: bool) -> None:
        """A scheduling step begins: its requests share one allowance for waiting."""
        wait = self._config.lookup_wait_ms / 1000
        self._wait_left = min(wait, _BUSY_WAIT_S) if busy else wait

    def _use_up(self, begin: float) -> None:
        """Takes what was waited since `begin` from the step's allowance."""
        self._wait_left = max(0.0, self._wait_left - (self._clock() - begin))

    def mend(self, wait: float = 0.0) -> None:
        """Closes an open breaker once the daemon answers again."""
        if self.breaker.closed:
            return
        now = self._clock()
        if self._ping is None and self.connected and self.breaker.may_ask(now):
            self._ping = self._client.ping_async(self._timeout)
        if self._ping is not None and (self._ping.done() or self._ping.wait(wait)):
            ping, self._ping = self._ping, None
            try:
                ping.result()
                self.breaker.success()
            except penstock.PenstockError:
                self.breaker.failure(self._clock())

    def start(self, identities: Sequence[bytes]) -> Lookup | None:
        """Asks; None when it is not worth asking (nothing to ask, daemon away, breaker open).

        Of a prompt with more chunks than a lookup holds, the beginning is asked about.
        """
        if not identities:
            return None
        begin = self._clock()
        self.mend(self._wait_left)
        self._use_up(begin)
        if not self.usable:
            return None
        most = MAX_KEYS // sum(len(namespaces) for namespaces in self._namespaces)
        if len(identities) > most:
            identities = identities[:most]
            self._counters["lookups_cut"] += 1
        groups = [
            penstock.MatchGroup(
                namespaces[group.index],
                [
                    penstock.prefix_key(namespaces[group.index], None, identity)
                    for identity in identities
                ],
                self._shape.window_chunks(group.index),
            )
            for namespaces in self._namespaces
            for group in self._shape.groups
        ]
        self._counters["lookups"] += 1
        lookup = Lookup(asked=len(identities), started=self._clock())
        lookup.op = self._client.match(
            groups, reserve_ttl=self._config.reserve_ttl_s, timeout=self._timeout
        )
        return lookup

    def poll(self, lookup: Lookup, wait: bool) -> bool:
        """True once the lookup has its answer; a late or failed one is answered with nothing."""
        if lookup.chunks is not None:
            return True
        allowance = self._wait_left if wait else 0.0
        begin = self._clock()
        done = lookup.op.done() or (allowance > 0 and lookup.op.wait(allowance))
        if wait:
            self._use_up(begin)
        if not done and self._clock() - lookup.started < self._timeout:
            return False
        if not done:
            lookup.op.cancel()
        self._settle(lookup)
        if not done or lookup.code == penstock.Code.DEADLINE_EXCEEDED:
            self._counters["lookups_late"] += 1
            self.breaker.failure(self._clock())
        elif lookup.code == penstock.Code.OK:
            self.breaker.success()
        else:
            self._counters["lookups_failed"] += 1
        return True

    def stale(self, lookup: Lookup) -> bool:
        """Whether the answer's reservation may end before a load would."""
        age = self._clock() - lookup.started
        return age > self._config.reserve_ttl_s * _RESERVATION_MARGIN

    def discard(self, lookup: Lookup | None) -> None:
        """Nobody needs the answer any more: gives back what it reserved."""
        if lookup is None:
            return
        if lookup.chunks is None:
            lookup.op.cancel()
            self._settle(lookup)
        self.release(lookup.reservation)
        lookup.reservation = 0

    def release(self, reservation: int) -> None:
        if reservation:
            self._client.release(reservation)

    @staticmethod
    def _settle(lookup: Lookup) -> None:
        result = lookup.op.result()
        lookup.op = None
        lookup.code = result.code
        lookup.chunks = result.chunks
        lookup.bytes = result.bytes
        lookup.reservation = result.reservation
