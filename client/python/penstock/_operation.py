"""Operations on their way."""

from __future__ import annotations

from typing import Callable, Generic, TypeVar

from . import _core

T_co = TypeVar("T_co", covariant=True)


class Op(Generic[T_co]):
    """An operation on its way, made by the methods of Client and PageStore.

    The memory that it was given belongs to it until it is done or cancel() has returned. Dropping
    the last reference to an operation that is not done cancels it.
    """

    __slots__ = ("_core", "_convert", "_result", "__weakref__")

    def __init__(self, core: _core.Operation, convert: Callable[[_core.Operation], T_co]) -> None:
        self._core = core
        self._convert = convert
        self._result: tuple[T_co] | None = None

    def done(self) -> bool:
        """Whether it is over. Never blocks."""
        return self._core.done()

    def wait(self, timeout: float | None = None) -> bool:
        """True once it is over; False when ``timeout`` seconds came first (it goes on)."""
        return self._core.wait(timeout)

    def result(self, timeout: float | None = None) -> T_co:
        """Waits, and returns what the method that made the operation promises.

        Raises TimeoutError when ``timeout`` seconds came first: the operation goes on.
        """
        if self._result is None:
            if not self._core.wait(timeout):
                raise TimeoutError("the operation is not done yet; it goes on")
            self._result = (self._convert(self._core),)
        return self._result[0]

    def cancel(self) -> None:
        """Ends it, and returns when nothing touches its memory any more."""
        self._core.cancel()

    def __repr__(self) -> str:
        return f"<penstock.Op {'done' if self.done() else 'on its way'}>"
