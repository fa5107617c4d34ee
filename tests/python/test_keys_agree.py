"""Keys are the same in every process, and the same as the checked-in golden ones."""

import json
import os
import pathlib
import subprocess
import sys

import penstock
import pytest

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "unit" / "golden"

CORPUS = """
import hashlib, json, sys
import penstock

ns = penstock.NamespaceDescriptor(**json.loads(sys.argv[1])).fingerprint_bytes()
digest, parent = hashlib.sha256(), None
for i in range(1000):
    parent = penstock.prefix_tokens_key(
        ns, parent, [(i * 16 + j) * 2654435761 % 2**32 for j in range(16)])
    digest.update(parent)
    digest.update(penstock.named_key(ns, f"object {i}"))
print(digest.hexdigest(), hash("x"))
"""


def golden(name):
    return json.loads((GOLDEN / name).read_text())


@pytest.mark.parametrize("case", golden("namespaces.json"), ids=lambda c: c["fingerprint"][:8])
def test_descriptors_encode_as_the_golden_ones(case):
    descriptor = penstock.NamespaceDescriptor(**case["descriptor"])
    assert descriptor.encode().hex() == case["encoding"]
    assert descriptor.fingerprint() == case["fingerprint"]


def test_keys_are_the_golden_ones():
    expected = golden("keys.json")
    ns = penstock.NamespaceDescriptor(**golden("namespaces.json")[1]["descriptor"])
    first = penstock.prefix_key(ns, None, b"block hash")
    assert first.hex() == expected["first"]
    second = penstock.prefix_key(ns, first, b"another block hash")
    assert second.hex() == expected["second"]
    tokens = penstock.prefix_tokens_key(ns, first, [0, 1, 151643, 2**32 - 1])
    assert tokens.hex() == expected["tokens"]
    assert penstock.prefix_tokens_key(ns, None, []).hex() == expected["no_tokens"]
    assert penstock.named_key(ns, "codec/é").hex() == expected["named"]


def test_twenty_fresh_processes_agree_whatever_their_surroundings(tmp_path):
    descriptor = json.dumps(golden("namespaces.json")[2]["descriptor"])
    seeds, digests = set(), set()
    for i in range(20):
        env = dict(os.environ)
        for name in ("LANG", "LC_ALL", "PYTHONHASHSEED", "TZ", "HOME"):
            env.pop(name, None)
        if i % 2:
            env |= {"PYTHONHASHSEED": str(i), "LC_ALL": "C" if i % 4 == 1 else "C.UTF-8"}
        env |= {"PYTHONMALLOC": ["malloc", "pymalloc"][i % 2], f"NOISE_{i}": "x" * i * 100}
        where = tmp_path / str(i)
        where.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", CORPUS, descriptor],
            env=env, cwd=where, capture_output=True, text=True, check=True,
        )  # fmt: skip
        digest, seed = done.stdout.split()
        digests.add(digest)
        seeds.add(seed)
    assert digests == {golden("keys.json")["corpus_1000"]}
    assert len(seeds) > 10  # The surroundings did differ.


def test_a_writer_and_a_reader_with_other_hash_seeds_share_chunks(shared_daemon):
    write = """
    import sys, penstock
    with penstock.Client(sys.argv[1]) as client:
        client.wait_connected(10)
        ns = client.namespace(penstock.NamespaceDescriptor(model="seeds"))
        keys = penstock.prefix_keys(ns, [b"block %d" % i for i in range(10)])
        if sys.argv[2] == "write":
            client.put_many(ns, [(key, bytes(100)) for key in keys])
        else:
            print(client.match([penstock.MatchGroup(ns, keys)]).result().chunks)
    """
    import textwrap

    outputs = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(write), shared_daemon.unix, what],
            env=dict(os.environ, PYTHONHASHSEED=seed), capture_output=True, text=True, check=True,
        ).stdout
        for what, seed in (("write", "1"), ("read", "2"))
    ]  # fmt: skip
    assert outputs == ["", "10\n"]
