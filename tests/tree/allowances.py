"""What the rules forbid, and the exceptions, each with its reason. To add one is a decision."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from source_tree import Source

# Path -> (limit in lines, reason).
LONG_FILES: dict[str, tuple[int, str]] = {}

# "path:function" -> (limit in lines, reason).
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}


def _cpp(source: Source) -> bool:
    return source.is_cpp


def _product_cpp(source: Source) -> bool:
    return source.is_cpp and not source.path.startswith("tests/")


def _build(source: Source) -> bool:
    return source.is_cmake or source.is_shell or source.suffix in {".json", ".toml"}


@dataclass
class Ban:
    what: str
    pattern: re.Pattern
    instead: str
    applies_to: Callable[[Source], bool] = _cpp
    allowed_under: dict[str, str] = field(default_factory=dict)  # Path or folder/ -> reason.


BANS = [
    Ban(
        "getenv",
        re.compile(r"\b(?:secure_)?getenv\s*\(|\benviron\b"),
        "a key of common/config",
        allowed_under={
            "common/config/": "its job",
            "tests/integration/daemon_process.cc": "hands the environment on, less our settings",
        },
    ),
    Ban(
        "std::cout and std::cerr",
        re.compile(r"\bstd::(?:cout|cerr|clog)\b"),
        "common/log, or print in a main",
        applies_to=_product_cpp,
        allowed_under={"client/cli/": "a command prints"},
    ),
    Ban(
        "sleeping",
        re.compile(r"\b(?:sleep_for|sleep_until|usleep|nanosleep)\b|(?<![\w.>:])sleep\s*\("),
        "a condition, an event or a deadline",
    ),
    Ban(
        "a mutex without annotations",
        re.compile(
            r"\babsl::(?:Mutex|CondVar)\b|\bstd::(?:recursive_|shared_|timed_)?mutex\b"
            r"|\bstd::condition_variable\w*|\bstd::(?:lock_guard|scoped_lock)\b"
        ),
        "Mutex, MutexLock and CondVar of common/base/mutex.h",
        allowed_under={"common/base/mutex.h": "wraps it"},
    ),
    Ban(
        "a fixed instruction set",
        re.compile(r"-m(?:arch|tune)=native"),
        "dispatch at run time",
        applies_to=_build,
    ),
    Ban(
        "unseeded or weak random numbers",
        re.compile(r"(?<![\w:.>])s?rand\s*\(|\bstd::random_shuffle\b"),
        "a seeded <random> engine",
    ),
    Ban(
        "the wall clock",
        re.compile(
            r"\bsystem_clock\b|\bgettimeofday\b|\bCLOCK_REALTIME\b|(?<![\w:.>])time\s*\(\s*(?:NULL|nullptr|0)?\s*\)"
        ),
        "Deadline or steady_clock",
        applies_to=_product_cpp,
        allowed_under={"common/log/": "log lines carry the date"},
    ),
    Ban(
        "unbounded C strings",
        re.compile(
            r"(?<![\w:.>])(?:std::)?(?:strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atoll)\s*\("
        ),
        "std::string, fmt::format or from_chars",
    ),
    Ban(
        "using namespace",
        re.compile(r"\busing\s+namespace\b(?!\s+std::(?:chrono|literals|chrono_literals)\b)"),
        "using-declarations",
    ),
    Ban(
        "detached threads",
        re.compile(r"(?:\.|->)detach\s*\(\s*\)\s*;"),
        "a joined thread with an owner",
        applies_to=_product_cpp,
        allowed_under={
            "common/transport/socket.cc": "getaddrinfo() cannot be cancelled; a bounded number runs"
        },
    ),
    Ban(
        "a note instead of work",
        re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b"),
        "finished code, or a tracked issue",
        applies_to=lambda s: s.is_cpp or s.is_python or s.is_shell or s.is_cmake,
    ),
]
