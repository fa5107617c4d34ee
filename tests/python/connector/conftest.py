"""The connector's own decisions, tested on a stand-in for the client: see fake_penstock.py."""

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
for _path in (_HERE, _HERE.parents[2] / "connector/penstock_vllm"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))


@pytest.fixture
def daemon(monkeypatch):
    import fake_penstock

    fake_penstock.install(monkeypatch)
    return fake_penstock.reset()
