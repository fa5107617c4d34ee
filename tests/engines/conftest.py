"""Fixtures of the tests with a real engine. They need vLLM: see deploy/lib/python/engine.txt."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/engines"), str(ROOT / "connector/penstock_vllm")]


def pytest_addoption(parser):
    parser.addoption("--model-cache", default=None, help="where models are kept")
    parser.addoption("--rounds", type=int, default=3, help="random workloads of each kind")
    parser.addoption("--prompts", type=int, default=20, help="stored and pulled by each model")
    parser.addoption("--kills", type=int, default=20, help="times that penstockd is killed")
    parser.addoption(
        "--build-dir", type=Path, default=ROOT / "build", help="where Penstock was built"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "engine: runs a real inference engine")
    config.addinivalue_line("markers", "long: takes minutes")
    package = config.getoption("--build-dir").resolve() / "python"
    sys.path.insert(0, str(package))
    # For the engine processes.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(package), os.environ.get("PYTHONPATH")])
    )


@pytest.fixture(scope="session")
def penstockd(pytestconfig) -> Path:
    program = (pytestconfig.getoption("--build-dir") / "server/daemon/penstockd").resolve()
    if not program.exists():
        pytest.fail(f"{program} is not built")
    return program


@pytest.fixture(scope="session")
def model_cache(pytestconfig) -> str | None:
    return pytestconfig.getoption("--model-cache")


@pytest.fixture(scope="module")
def place(request):
    """A directory with a short name (socket paths are short), gone with the module's tests.

    Logs of engines and daemons are in it; where a test failed they are kept, and it says where.
    """
    failed_before = request.session.testsfailed
    directory = Path(tempfile.mkdtemp(prefix="pt-"))
    yield directory
    if request.session.testsfailed > failed_before:
        print(f"\nlogs of this module are kept in {directory}")
    else:
        shutil.rmtree(directory)


@pytest.fixture
def make_daemon(penstockd, place):
    """make_daemon(*flags, arena=...) -> DaemonProcess, stopped after the test."""
    from harness.daemon import DaemonProcess

    daemons = []

    def make(*flags: str, arena: str = "512MiB") -> DaemonProcess:
        directory = Path(tempfile.mkdtemp(prefix="d-", dir=place))
        daemons.append(DaemonProcess(penstockd, directory, *flags, arena=arena))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def start_engine(place):
    """start_engine(model, **options) -> EngineProcess, ended after the test."""
    from harness.process import EngineProcess

    engines = []

    def start(model, **options) -> EngineProcess:
        log = place / f"engine-{len(list(place.glob('engine-*')))}.log"
        engines.append(EngineProcess(model, log=log, **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
