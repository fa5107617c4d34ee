import dataclasses
import json
import os
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
    assert wait_for_adapter(background, tmp_path / "one", 1) == one
    assert wait_for_adapter(background, tmp_path / "other", 2) == other


def test_adapter_without_its_configuration_has_no_digest(tmp_path):
    (make_adapter(tmp_path / "a") / "adapter_config.json").unlink()
    with pytest.raises(IdentityError, match=r"adapter_config\.json"):
        Background(None).adapter(str(tmp_path / "a"), 1)


def wait_for_adapter(background, path, load=1):
    deadline = time.monotonic() + 10
    while (digest := background.adapter(str(path), load)) is None and time.monotonic() < deadline:
        background.wait(0.05)
    return digest


def start_background():
    """Its tick of the file system's clock is over: what changes now changes after its start."""
    background = Background(None)
    time.sleep(0.02)
    return background


def rewrite(adapter, name):
    """In place, as long as before, and as old as its owner can make it look."""
    file = adapter / name
    modified = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes().replace(b"1", b"2"))
    os.utime(file, ns=(modified, modified))


def rename(adapter, name):
    new = adapter.parent / "new"
    new.write_bytes((adapter / name).read_bytes())
    os.replace(new, adapter / name)


def swap_directory(adapter, name):
    adapter.rename(adapter.parent / "old")
    (adapter.parent / "other").rename(adapter)


def swap_link(adapter, name):
    link = adapter.parent / "link"
    link.symlink_to(adapter.parent / "other")
    adapter.rename(adapter.parent / "old")
    link.rename(adapter)


def remove(adapter, name):
    """Now the engine would read another one."""
    (adapter / "adapter_model.safetensors").unlink()


CHANGES = pytest.mark.parametrize("change", [rewrite, rename, swap_directory, swap_link, remove])


@CHANGES
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
@pytest.mark.parametrize("seen", [False, True])
def test_adapter_that_changes_after_the_start_has_no_name(tmp_path, change, name, seen):
    """The engine loaded it before, or will load it again: nobody knows which of the two it has."""
    adapter = make_adapter(tmp_path / "a")
    (adapter / "adapter_model.bin").write_bytes(b"3" * 100)
    make_adapter(tmp_path / "other", b"2" * 100)
    background = start_background()
    if seen:
        assert wait_for_adapter(background, adapter) == digest_adapter(adapter, None)
    change(adapter, name)
    for load in (1, 2, 1):
        with pytest.raises(IdentityError, match="changed"):
            background.adapter(str(adapter), load)
    # After a restart the engine can have read nothing else.
    assert wait_for_adapter(Background(None), adapter) == digest_adapter(adapter, None)


def test_change_that_looks_older_than_the_start_is_noticed_all_the_same(tmp_path):
    """Where the clock of the file server is behind."""
    adapter = make_adapter(tmp_path / "a")
    background = start_background()
    background._started += 10**12
    wait_for_adapter(background, adapter)
    rewrite(adapter, "adapter_config.json")
    with pytest.raises(IdentityError, match="changed"):
        background.adapter(str(adapter), 1)


def test_number_of_an_adapter_that_stood_for_another_one_has_no_name(tmp_path):
    one, other = make_adapter(tmp_path / "one"), make_adapter(tmp_path / "other", b"2" * 100)
    background = Background(None)
    assert wait_for_adapter(background, one, 1) is not None
    for path in (other, one):
        with pytest.raises(IdentityError, match="in place"):
            background.adapter(str(path), 1)
    assert wait_for_adapter(background, other, 2) == digest_adapter(other, None)
    with pytest.raises(IdentityError, match="in place"):
        background.adapter(str(one), 3, in_place=True)
    with pytest.raises(IdentityError, match="in place"):
        background.adapter(str(one), 3)


def test_tables_of_adapters_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock_vllm.identity._MAX_ADAPTERS", 2)
    adapters = [make_adapter(tmp_path / str(i)) for i in range(4)]
    background = Background(None)
    for _ in range(2):
        for load, adapter in enumerate(adapters):
            assert wait_for_adapter(background, adapter, load) == digest_adapter(adapter, None)
            assert len(background._adapters) <= 2 and len(background._loads) <= 2


def test_adapter_that_did_not_change_is_read_once(tmp_path, monkeypatch):
    adapter = make_adapter(tmp_path / "a")
    background = Background(None)
    first = wait_for_adapter(background, adapter)
    monkeypatch.setattr("penstock_vllm.identity._digest_file", lambda *_: pytest.fail("read again"))
    assert [background.adapter(str(adapter), load) for load in (1, 1, 2)] == [first] * 3


def test_adapter_that_appears_later_has_no_name_until_the_engine_restarts(tmp_path):
    background = start_background()
    with pytest.raises(IdentityError):
        background.adapter(str(tmp_path / "a"), 1)
    make_adapter(tmp_path / "a")
    with pytest.raises(IdentityError, match="changed"):
        background.adapter(str(tmp_path / "a"), 1)
    assert wait_for_adapter(Background(None), tmp_path / "a") is not None


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
