import dataclasses
import json
import os
import shutil
import time

import pytest
from penstock_vllm.identity import (
    Background,
    EngineFacts,
    IdentityError,
    choose_chunk_tokens,
    digest_adapter,
    digest_config,
    digest_weights,
    namespace_fields,
    request_suffix,
)
from penstock_vllm.messages import Group, GroupFacts, Shape, WorkerFacts

FACTS = EngineFacts(
    tenant="t",
    tenant_salt="",
    model="m",
    weights="w" * 64,
    config="c",
    compute_dtype="bfloat16",
    cache_dtype="auto",
    scale_mode="none",
    quantization="None",
    engine="vllm/0.32.0",
    runner="v1",
    hash_algorithm="sha256/python3.11",
    none_hash="00",
)
SHAPE = Shape(
    256, 128, (Group(0, 0, 128, ("a",), "full"), Group(1, 512, 128, ("b",), "sliding:512"))
)
PAGES = (
    GroupFacts(("a",), "bfloat16", "g", "CPU_ATTN:vec", 65536),
    GroupFacts(("b",), "bfloat16", "g", "CPU_ATTN:vec", 65536),
)
WORKER = WorkerFacts(0, 1, 0, 1, 0, 1, "LBHNC", PAGES)


def names(facts=FACTS, shape=SHAPE, worker=WORKER):
    return [repr(sorted(f.items(), key=str)) for f in namespace_fields(facts, shape, worker)]


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(EngineFacts)])
def test_every_fact_about_the_engine_changes_every_namespace(field):
    value = 7 if field == "generation" else "other"
    changed = names(facts=dataclasses.replace(FACTS, **{field: value}))
    assert all(a != b for a, b in zip(names(), changed, strict=True))


@pytest.mark.parametrize(
    "field", ["tp_rank", "tp_size", "pp_rank", "pp_size", "dcp_rank", "dcp_size", "layout"]
)
def test_every_fact_about_the_worker_changes_every_namespace(field):
    changed = names(worker=dataclasses.replace(WORKER, **{field: 9}))
    assert all(a != b for a, b in zip(names(), changed, strict=True))


@pytest.mark.parametrize("field", ["layer_names", "kv_dtype", "geometry", "page_kind"])
def test_every_fact_about_a_groups_pages_changes_its_namespace(field):
    value = ("z",) if field == "layer_names" else "other"
    pages = (PAGES[0]._replace(**{field: value}), PAGES[1])
    changed = names(worker=dataclasses.replace(WORKER, groups=pages))
    assert changed[0] != names()[0] and changed[1] == names()[1]


def test_shape_is_part_of_the_namespace():
    bigger = SHAPE._replace(chunk_tokens=512)
    finer = SHAPE._replace(hash_tokens=64)
    assert len({names()[0], names(shape=bigger)[0], names(shape=finer)[0]}) == 3


def test_groups_have_different_namespaces():
    assert len(set(names())) == 2


def test_directory_of_weights_is_named_by_contents_not_by_place(tmp_path):
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x" * 1000)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "three" / "model.safetensors").write_bytes(b"x" * 999 + b"y")
    one, two, three = (digest_weights(tmp_path / n, None) for n in ("one", "two", "three"))
    assert one == two != three


def test_digest_of_weights_is_kept_and_follows_a_change(tmp_path):
    model, cache = tmp_path / "model", tmp_path / "cache"
    model.mkdir()
    file = model / "a.safetensors"
    file.write_bytes(b"1" * 100)
    first = digest_weights(model, cache)
    entries = list(cache.iterdir())
    assert len(entries) == 1
    entries[0].write_text("f" * 64)  # Proof that it is read, not computed again.
    assert digest_weights(model, cache) != first
    file.write_bytes(b"2" * 100)
    os.utime(file, ns=(1, time.time_ns() + 10**9))
    second = digest_weights(model, cache)
    assert second == digest_weights(model, None) != first
    time.sleep(0.02)
    modified = file.stat().st_mtime_ns
    file.write_bytes(b"3" * 100)
    os.utime(file, ns=(1, modified))
    assert digest_weights(model, cache) == digest_weights(model, None) != second


def test_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"1")
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert digest_weights(tmp_path, blocked / "cache") == digest_weights(tmp_path, None)


def test_directory_without_weights_says_what_to_set(tmp_path):
    with pytest.raises(IdentityError, match="model_fingerprint"):
        digest_weights(tmp_path, None)


def test_background_digest_arrives_and_errors_too(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"1" * 1000)
    background = Background(None)
    deadline = time.monotonic() + 10
    while (digest := background.get(str(tmp_path))) is None and time.monotonic() < deadline:
        background.wait(0.05)
    assert digest == digest_weights(tmp_path, None)
    with pytest.raises(IdentityError):
        while time.monotonic() < deadline:
            background.get(str(tmp_path / "nothing"))
            background.wait(0.05)


def make_adapter(path, weights=b"1" * 100, **config):
    path.mkdir(exist_ok=True)
    (path / "adapter_model.safetensors").write_bytes(weights)
    (path / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16, **config}))
    return path


@pytest.mark.parametrize(
    "changed", [{"lora_alpha": 32}, {"use_rslora": True}, {"target_modules": ["q_proj"]}]
)
def test_how_an_adapters_weights_are_applied_is_part_of_its_digest(tmp_path, changed):
    one = digest_adapter(make_adapter(tmp_path / "one"), None)
    same = digest_adapter(make_adapter(tmp_path / "same"), None)
    other = digest_adapter(make_adapter(tmp_path / "other", **changed), None)
    retrained = digest_adapter(make_adapter(tmp_path / "retrained", b"2" * 100), None)
    assert one == same and len({one, other, retrained}) == 3
    background = Background(None)
    assert wait_for_adapter(background, tmp_path / "one") == one
    assert wait_for_adapter(background, tmp_path / "other") == other


def test_adapter_without_its_configuration_has_no_digest(tmp_path):
    (make_adapter(tmp_path / "a") / "adapter_config.json").unlink()
    with pytest.raises(IdentityError, match=r"adapter_config\.json"):
        wait_for_adapter(Background(None), tmp_path / "a")


def wait_for_adapter(background, path):
    deadline = time.monotonic() + 10
    while (digest := background.adapter(str(path))) is None and time.monotonic() < deadline:
        background.wait(0.05)
    return digest


def test_adapter_is_read_once_and_nobody_looks_at_its_files_again(tmp_path):
    adapter = make_adapter(tmp_path / "a")
    background = Background(None)
    first = wait_for_adapter(background, adapter)
    shutil.rmtree(adapter)
    assert [background.adapter(str(adapter)) for _ in range(3)] == [first] * 3


def test_table_of_adapters_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock_vllm.identity._MAX_ADAPTERS", 2)
    adapters = [make_adapter(tmp_path / str(i)) for i in range(4)]
    background = Background(None)
    for _ in range(2):
        for adapter in adapters:
            assert wait_for_adapter(background, adapter) == digest_adapter(adapter, None)
            assert len(background._adapters) <= 2


def test_configuration_digest_ignores_where_the_model_lies():
    base = {"hidden_size": 8, "_name_or_path": "/a", "transformers_version": "1"}
    assert digest_config(base) == digest_config({**base, "_name_or_path": "/b"})
    assert digest_config(base) != digest_config({**base, "hidden_size": 9})


def test_adapter_and_salt_of_the_same_name_are_told_apart():
    plain = request_suffix(None, None, None)
    salted = request_suffix(None, None, "x")
    adapted = request_suffix(("x", "/p"), "digest", None)
    retrained = request_suffix(("x", "/p"), "other", None)
    both = request_suffix(("x", "/p"), "digest", "x")
    assert plain == b"" and len({plain, salted, adapted, retrained, both}) == 5


@pytest.mark.parametrize(
    "blocks,windows,hash_tokens,chunk",
    [
        ([128], [], 128, 256),
        ([16], [], 16, 256),
        ([128, 128], [512], 128, 256),
        ([128, 128], [128], 128, 128),
        ([384], [], 384, 384),
        ([16, 48], [], 16, 240),
        ([128, 128], [64], 128, 128),
    ],
)
def test_chunk_is_about_256_tokens_and_no_longer_than_a_window(blocks, windows, hash_tokens, chunk):
    assert choose_chunk_tokens(0, blocks, windows, hash_tokens) == chunk


def test_chunk_that_is_not_whole_blocks_is_refused():
    assert choose_chunk_tokens(512, [128], [], 128) == 512
    with pytest.raises(IdentityError, match="multiple of 128"):
        choose_chunk_tokens(200, [128], [], 128)
