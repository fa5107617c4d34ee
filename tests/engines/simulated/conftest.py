"""The simulated engine runs vLLM's real scheduler on the stand-in for the native client."""

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
for _path in (_HERE.parent, _HERE.parent / "unit", _HERE.parents[2] / "connector"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))

import fake_penstock  # noqa: E402

fake_penstock.install()


def pytest_addoption(parser):
    parser.addoption("--model-cache", default=None, help="where models are kept")
    parser.addoption("--rounds", type=int, default=3, help="random workloads of each kind")


@pytest.fixture
def daemon() -> fake_penstock.Daemon:
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
