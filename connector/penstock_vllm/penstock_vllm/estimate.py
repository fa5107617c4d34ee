"""Running estimates of what loading and prefilling cost, and the breaker that ends waiting.

Nothing here knows an engine or a daemon: numbers go in, decisions come out. Times are seconds of a
monotonic clock that the caller reads.
"""

from __future__ import annotations

from .messages import LoadTime

# Before anything was measured, loads are expected to be this slow.
_UNKNOWN_BYTES_PER_S = 200e6
# A load may take this many times what is expected.
_PATIENCE = 6.0
_SHORTEST_DEADLINE_S = 0.1
# Loads that were slow once are not declined for ever where the engine is so busy that the time of
# a trial cannot be told: after so many what was known is forgotten.
_MOST_VAIN_TRIALS = 3


class LinearCost:
    """seconds = fixed + per_unit * units, fitted to measurements of which old ones fade.

    Least squares over the sums of the measurements, each sum shrunk by `decay` a measurement. With
    measurements of one size only, everything is taken to be proportional.
    """

    def __init__(self, decay: float = 0.9) -> None:
        self._decay = decay
        self._count = 0
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self.updated_at: float | None = None

    @property
    def known(self) -> bool:
        return self._count > 0

    def add(self, units: float, seconds: float, now: float) -> None:
        if units <= 0 or seconds < 0:
            return
        self._count += 1
        keep = self._decay
        self._n = self._n * keep + 1.0
        self._x = self._x * keep + units
        self._y = self._y * keep + seconds
        self._xx = self._xx * keep + units * units
        self._xy = self._xy * keep + units * seconds
        self.updated_at = now

    def coefficients(self) -> tuple[float, float]:
        """(fixed, per_unit); both at least 0. REQUIRES: known."""
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean_x * mean_x
        if variance > 1e-4 * mean_x * mean_x:
            slope = (self._xy / self._n - mean_x * mean_y) / variance
            fixed = mean_y - slope * mean_x
            if slope > 0 and fixed >= 0:
                return fixed, slope
        return 0.0, self._xy / self._xx

    def predict(self, units: float) -> float:
        fixed, per_unit = self.coefficients()
        return fixed + per_unit * units


class LoadPlanner:
    """Says whether a load is worth it, and how long it may take.

    A load that would lose against prefill is declined. Declining ends the measurements, so once in
    a while (`retry_after` seconds) one is let through to find out whether things got better.
    """

    def __init__(self, *, adapt: bool, load_timeout: float, retry_after: float = 30.0) -> None:
        """`adapt`: decide by what was measured; otherwise every load is worth `load_timeout`."""
        self.load = LinearCost()
        self.prefill = LinearCost()
        self._adapt = adapt
        self._load_timeout = load_timeout
        self._retry_after = retry_after
        self._tried_at: float | None = None
        self._vain_trials = 0  # In a row, of which nothing was learned.

    def add_load(self, load: LoadTime, now: float) -> None:
        """A time that is not exact is the most that the load can have taken: it makes loads look
        faster, never slower."""
        if load.exact or (self.load.known and load.seconds < self.load.predict(load.bytes)):
            self.load.add(load.bytes, load.seconds, now)
            self._vain_trials = 0

    def worth(self, tokens: int, size: int, now: float) -> bool:
        """Whether loading `size` bytes beats prefilling `tokens`."""
        if not self._adapt or not self.load.known or not self.prefill.known:
            return True
        if self.load.predict(size) <= self.prefill_seconds(tokens):
            return True
        newest = max(self.load.updated_at or 0.0, self._tried_at or 0.0)
        if now - newest < self._retry_after:
            return False
        self._tried_at = now
        self._vain_trials += 1
        if self._vain_trials > _MOST_VAIN_TRIALS:
            self.load = LinearCost()
            self._vain_trials = 0
        return True

    def prefill_seconds(self, tokens: int) -> float:
        """What prefilling `tokens` would add: the fixed cost of a step is paid anyway."""
        return self.prefill.coefficients()[1] * tokens

    def deadline(self, tokens: int, size: int) -> float:
        """Seconds after which the load is given up and its tokens are recomputed.

        Several times what is predicted, against noise, but no longer than recomputing takes: from
        then on waiting costs more than it can save. What the operator allows is never exceeded, and
        is what counts alone where nothing is declined.
        """
        if not self._adapt:
            return self._load_timeout
        expected = self.load.predict(size) if self.load.known else size / _UNKNOWN_BYTES_PER_S
        patience = _PATIENCE * expected
        if self.prefill.known:
            patience = min(patience, self.prefill_seconds(tokens))
        return min(self._load_timeout, max(_SHORTEST_DEADLINE_S, patience))


class Pause:
    """Ends loading for a while after a load ran into its deadline, longer each time in a row."""

    def __init__(self, *, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._next = shortest
        self._until: float | None = None

    def active(self, now: float) -> bool:
        return self._until is not None and now < self._until

    def failure(self, now: float) -> None:
        if self.active(now):
            return  # Of loads that began before the pause.
        self._until = now + self._next
        self._next = min(self._next * 2, self._longest)

    def success(self) -> None:
        self._next = self._shortest
        self._until = None


class Breaker:
    """Stops asking a daemon that does not answer in time.

    Closed: ask and wait. After `threshold` failures in a row it opens: nothing is asked for a pause
    that doubles from `shortest` to `longest`. Then one trial is let through, which nobody waits
    for; its outcome closes the breaker or opens it again.
    """

    def __init__(self, *, shortest: float, longest: float, threshold: int = 2) -> None:
        self._shortest = shortest
        self._longest = longest
        self._threshold = threshold
        self._failures = 0
        self._pause = shortest
        self._open_until: float | None = None
        self._trial = False
        self.trips = 0

    @property
    def closed(self) -> bool:
        return self._open_until is None

    def may_ask(self, now: float) -> bool:
        """REQUIRES, once it is open: success(), failure() or forget_trial() follows a True."""
        if self._open_until is None:
            return True
        if self._trial or now < self._open_until:
            return False
        self._trial = True
        return True

    def success(self) -> None:
        self._failures = 0
        self._pause = self._shortest
        self._open_until = None
        self._trial = False

    def failure(self, now: float) -> None:
        self._failures += 1
        if self._open_until is None and self._failures < self._threshold:
            return
        if self._open_until is not None and not self._trial:
            return  # Late news of what was asked before it opened.
        if self._open_until is not None:
            self._pause = min(self._pause * 2, self._longest)
        self._open_until = now + self._pause
        self._trial = False
        self.trips += 1

    def forget_trial(self) -> None:
        """The trial ended without an answer either way (its request went away)."""
        self._trial = False
