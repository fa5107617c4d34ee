"""Codes, and the exceptions that carry them."""

from __future__ import annotations

import enum
from typing import Final

from . import _core


class Code(enum.IntEnum):
    """What happened. The same numbers in C++, in C, on the wire and in metrics."""

    OK = 0
    MISS = 1
    ALREADY_EXISTS = 2
    BUFFER_TOO_SMALL = 3
    FORMAT_MISMATCH = 4
    CHECKSUM_MISMATCH = 5
    BUSY = 6
    ALL_PINNED = 7
    DEADLINE_EXCEEDED = 8
    CANCELLED = 9
    DISCONNECTED = 10
    FENCED = 11
    INVALID_ARGUMENT = 12
    VERSION_SKEW = 13
    TOO_LARGE = 14
    BAD_BUFFER = 15
    UNIMPLEMENTED = 16
    RESOURCE_EXHAUSTED = 17
    PERMISSION_DENIED = 18
    IO_ERROR = 19
    INTERNAL = 20
    CORRUPT_MESSAGE = 21

    @property
    def advice(self) -> str:
        """One sentence: what the caller can do. Empty for OK."""
        return _ADVICE[self]


_ADVICE: Final[dict[int, str]] = {number: advice for _, number, advice in _core.codes()}
_CODES: Final[tuple[Code, ...]] = tuple(Code)


def to_code(number: int) -> Code:
    """The code with a number; faster than Code(number)."""
    return _CODES[number]


class PenstockError(Exception):
    """A call that did not do what it was asked, with its code and a sentence."""

    code: Code
    message: str

    def __new__(cls, code: int, message: str = "") -> PenstockError:
        # Without the arguments: OSError, a base of some, would take the code for an errno.
        self = super().__new__(cls)
        self.code = Code(code)
        self.message = message
        self.args = (int(code), message)
        return self

    def __init__(self, code: int, message: str = "") -> None:
        """For the signature: __new__ does the work."""

    def __str__(self) -> str:
        text = self.code.name
        if self.message:
            text += f": {self.message}"
        if self.code.advice:
            text += f" ({self.code.advice})"
        return text


class Miss(PenstockError, KeyError):
    """Nothing is stored under the key (any more)."""

    __str__ = PenstockError.__str__


class BadBuffer(PenstockError, ValueError):
    """Memory that cannot be used: read-only, not contiguous, released, not mapped, not the CPU's."""


class InvalidArgument(PenstockError, ValueError):
    """The request itself is wrong."""


class DeadlineExceeded(PenstockError, TimeoutError):
    """The operation's own patience ended."""

    __str__ = PenstockError.__str__


class Disconnected(PenstockError, ConnectionError):
    """The daemon cannot be reached, or went away during the call."""

    __str__ = PenstockError.__str__


_CLASSES: Final[dict[int, type[PenstockError]]] = {
    Code.MISS: Miss,
    Code.BAD_BUFFER: BadBuffer,
    Code.INVALID_ARGUMENT: InvalidArgument,
    Code.DEADLINE_EXCEEDED: DeadlineExceeded,
    Code.DISCONNECTED: Disconnected,
}


def make_error(code: int, message: str) -> PenstockError:
    """The exception for a code that is not OK."""
    return _CLASSES.get(code, PenstockError)(code, message)
