"""A real penstockd for the tests, and a place to find it and the package in: the build directory."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from penstockd_process import Daemon

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    parser.addoption(
        "--build-dir", type=pathlib.Path, default=ROOT / "build", help="where Penstock was built"
    )
    parser.addoption("--penstockd", type=pathlib.Path, help="default: the one that was built")
    parser.addoption(
        "--installed", action="store_true", help="test the installed package, not the built one"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "engine: runs a real inference engine")
    if not config.getoption("--installed"):
        package = config.getoption("--build-dir").resolve() / "python"
        sys.path.insert(0, str(package))
        # For the processes that tests start.
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(package), os.environ.get("PYTHONPATH")])
        )


@pytest.fixture(scope="session")
def penstockd(pytestconfig) -> pathlib.Path:
    built = pytestconfig.getoption("--build-dir") / "server/daemon/penstockd"
    program = (pytestconfig.getoption("--penstockd") or built).resolve()
    if not program.exists():
        pytest.skip(f"{program} is not built")
    return program


@pytest.fixture
def make_daemon(penstockd, tmp_path_factory):
    """make_daemon(arena="64MiB", *flags) -> Daemon"""
    daemons = []

    def make(arena: str = "256MiB", *flags: str) -> Daemon:
        daemons.append(Daemon(penstockd, tmp_path_factory.mktemp("penstockd"), arena, *flags))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.end()


@pytest.fixture(scope="module")
def shared_daemon(penstockd, tmp_path_factory):
    """One for the tests of a module that do it no harm."""
    daemon = Daemon(penstockd, tmp_path_factory.mktemp("penstockd"), "256MiB")
    yield daemon
    daemon.end()


@pytest.fixture
def daemon(make_daemon):
    """One that the test may kill."""
    return make_daemon()


@pytest.fixture
def client(shared_daemon):
    import penstock

    with penstock.Client(shared_daemon.unix, name="test") as client:
        assert client.wait_connected(10), client.stats()["last_error"]
        yield client


@pytest.fixture
def ns(client, request):
    """A namespace that no other test uses."""
    import penstock

    return client.namespace(
        penstock.NamespaceDescriptor(model="m", extension={"test": request.node.nodeid})
    )
