"""The simulated engine runs vLLM's real scheduler on the stand-in for the native client."""

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
_PATHS = (
    _HERE.parent,
    _ROOT / "tests/python/connector",
    _ROOT / "connector/penstock_vllm",
    _ROOT / "build/python",
)
sys.path[:0] = [str(path) for path in _PATHS if str(path) not in sys.path]


@pytest.fixture
def daemon(monkeypatch):
    import fake_penstock

    fake_penstock.install(monkeypatch)
    return fake_penstock.reset()


@pytest.fixture(scope="session")
def llama(request) -> str:
    import models

    return str(models.llama(1, request.config.getoption("--model-cache")))


@pytest.fixture
def engines(llama):
    """Makes engines and shuts them down."""
    from simulated.engine import SimulatedEngine

    made = []

    def make(extra="default", **options):
        if extra == "default":
            extra = {
                "chunk_tokens": 32,
                "decline_slow_loads": False,
                "pinned_blocks_percent": 60.0,
            }
        engine = SimulatedEngine(llama, extra, **options)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.shutdown()
