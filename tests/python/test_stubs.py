"""The type hints are complete, right, and say what the extension module has."""

import inspect
import pathlib
import subprocess
import sys
import textwrap

import penstock
import pytest
from penstock import _core

pytest.importorskip("mypy")
PACKAGE = pathlib.Path(penstock.__file__).parent


def mypy(tmp_path, code: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    return subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path.parent / "cache",
            script,
        ],
        capture_output=True, text=True, cwd=tmp_path, env={"MYPYPATH": str(PACKAGE.parent)},
    )  # fmt: skip


def test_the_package_and_what_uses_it_pass_strict_checks(tmp_path):
    done = mypy(
        tmp_path,
        """
        import array
        import penstock
        client = penstock.Client("tcp://127.0.0.1:1", name="x")
        ns = client.namespace(penstock.NamespaceDescriptor(model="m"))
        key: bytes = penstock.prefix_key(ns, None, b"x")
        value: bytes = client.get(ns, key)
        size: int = client.get(ns, key, bytearray(10))
        code: penstock.Code = client.put(ns, key, [b"a", array.array("d")], timeout=1.0)
        op: penstock.Op[penstock.MatchResult] = client.match([penstock.MatchGroup(ns, [key])])
        chunks: int = op.result(1.0).chunks
        pages = penstock.PageStore(client, null_block=0)
        group = pages.add_group(ns, 2, [penstock.PageView(0, 0, 1, 1, 0)])
        pages.remove_group(group)
        codes: list[penstock.Code] = pages.load([penstock.PageChunk(group, key, [1, 2])]).result()
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr


WRONG = [
    "client.get(ns, 'key')",
    "client.put(ns, b'', 'text')",
    "penstock.Client(1)",
    "client.match([ns])",
    "client.get(ns, b'').chunks",
    "client.get(ns, b'', bytearray(1)).decode()",
]


def test_mistakes_are_found_by_the_type_checker(tmp_path):
    head = "import penstock\ndef use(client: penstock.Client, ns: penstock.Namespace) -> None:\n"
    done = mypy(tmp_path, head + "".join(f"    {line}\n" for line in WRONG))
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == {i + 3 for i in range(len(WRONG))}, done.stdout + done.stderr


# Aliases for the type checker alone, and what pybind11's classes have that a stub cannot say.
NOT_AT_RUN_TIME = r"""
penstock\._core\.(Buffer|Buffers|BytesTarget|Client|Namespace|Operation|PageStore)
penstock\._client\.Tier
penstock\._core\.(Namespace|Operation)\.__init__
"""


def test_the_stub_of_the_extension_module_is_true(tmp_path):
    allowed = tmp_path / "allowed"
    allowed.write_text(NOT_AT_RUN_TIME)
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "penstock", "--allowlist", allowed],
        capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(PACKAGE.parent), "MYPYPATH": str(PACKAGE.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_everything_public_is_listed_and_documented():
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name
    assert penstock.__version__ == _core.__version__
