"""The unit tests of the connector run on the stand-in for the native client."""

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
for _path in (_HERE, _HERE.parent, _HERE.parents[2] / "connector"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))

import fake_penstock  # noqa: E402

fake_penstock.install()


@pytest.fixture
def daemon() -> fake_penstock.Daemon:
    return fake_penstock.reset()
