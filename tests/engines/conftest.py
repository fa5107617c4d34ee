"""Fixtures of the tests with a real engine. They need vLLM: see deploy/lib/python/engine.txt.

Starting an engine takes ten seconds of a core, so engines are shared: one without a connector for all
that the Llama should say, and within each module one for all tests that its settings suit.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONNECTOR = ROOT / "connector/penstock_vllm"
sys.path.insert(0, str(ROOT / "tests/engines"))

# Of one test with all that is set up for it: several engines and twenty long prompts, or a model that
# is made and looked at for the first time.
TIMEOUT_SECONDS = 600


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
    # The connector of this tree first: what is built may be of another, and has a connector, too.
    sys.path[:0] = [str(CONNECTOR), str(package)]
    # For the engine processes.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(package), os.environ.get("PYTHONPATH")])
    )
    # Several engines share the processors here: threads that spin while they wait take them from
    # those that work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def penstockd(pytestconfig) -> Path:
    program = (pytestconfig.getoption("--build-dir") / "server/daemon/penstockd").resolve()
    if not program.exists():
        pytest.fail(f"{program} is not built")
    return program


@pytest.fixture(scope="session")
def model_cache(pytestconfig) -> str | None:
    return pytestconfig.getoption("--model-cache")


@pytest.fixture(scope="session")
def llama(model_cache) -> Path:
    import models

    return models.llama(1, model_cache)


@pytest.fixture(scope="session")
def place(request):
    """A directory with a short name (socket paths are short), gone with the tests.

    Logs of engines and daemons are in it; if a test failed they are kept, and it says where.
    """
    directory = Path(tempfile.mkdtemp(prefix="pt-"))
    # An engine that is killed leaves its sockets.
    os.environ["VLLM_RPC_BASE_PATH"] = str(directory)
    yield directory
    if request.session.testsfailed:
        print(f"\nlogs of engines and daemons are kept in {directory}")
    else:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def llama_alone(llama, place):
    """The engine that says what the Llama should say. Each prompt is for one module only."""
    from harness.compare import reference_engine

    with reference_engine(llama, place / "llama-alone.log") as engine:
        yield engine


class Starter:
    """Starts engines and daemons, and ends them."""

    def __init__(self, program: Path, place: Path) -> None:
        self._program = program
        self._place = place
        self._engines = []
        self._daemons = []

    def daemon(self, *flags: str, arena: str = "512MiB"):
        from harness.daemon import DaemonProcess

        directory = Path(tempfile.mkdtemp(prefix="d-", dir=self._place))
        self._daemons.append(DaemonProcess(self._program, directory, *flags, arena=arena))
        return self._daemons[-1]

    def engine(self, model, **options):
        from harness.process import EngineProcess

        log = self._place / f"engine-{len(list(self._place.glob('engine-*')))}.log"
        self._engines.append(EngineProcess(model, log=log, **options))
        return self._engines[-1]

    def end_all(self) -> None:
        for engine in self._engines:
            engine.close()
        for daemon in self._daemons:
            daemon.stop()


@pytest.fixture
def starter(penstockd, place):
    """starter.engine(model, **options), starter.daemon(*flags): ended after the test."""
    made = Starter(penstockd, place)
    yield made
    made.end_all()


@pytest.fixture(scope="module")
def module_starter(penstockd, place):
    """The same, ended after the module's tests."""
    made = Starter(penstockd, place)
    yield made
    made.end_all()
