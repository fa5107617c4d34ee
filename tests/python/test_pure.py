"""What needs no daemon: codes, exceptions, descriptors, keys."""

import dataclasses
import pickle

import penstock
import pytest
from penstock import _core


def test_the_codes_are_those_of_the_library():
    assert [(c.name, c.value, c.advice) for c in penstock.Code] == _core.codes()


def test_every_code_becomes_an_exception_of_its_kind():
    kinds = {
        penstock.Code.MISS: (penstock.Miss, KeyError),
        penstock.Code.BAD_BUFFER: (penstock.BadBuffer, ValueError),
        penstock.Code.INVALID_ARGUMENT: (penstock.InvalidArgument, ValueError),
        penstock.Code.DEADLINE_EXCEEDED: (penstock.DeadlineExceeded, TimeoutError),
        penstock.Code.DISCONNECTED: (penstock.Disconnected, ConnectionError),
    }
    for code in list(penstock.Code)[1:]:
        error = penstock._status.make_error(code, "because")
        assert isinstance(error, penstock.PenstockError)
        assert isinstance(error, kinds.get(code, (penstock.PenstockError,)))
        assert error.code is code
        assert str(error) == f"{code.name}: because ({code.advice})"
        assert getattr(error, "errno", None) is None
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.code, again.message) == (type(error), code, "because")


FIELDS = {
    "tenant": "other",
    "tenant_salt": "salt",
    "model": "other",
    "model_revision": "r2",
    "kv_dtype": "fp8_e4m3",
    "kv_scale_mode": "per-tensor:1",
    "layout": "vllm.NHD.v1",
    "block_tokens": 32,
    "chunk_tokens": 512,
    "tp_rank": 1,
    "tp_size": 4,
    "pp_rank": 1,
    "pp_size": 4,
    "dcp_rank": 1,
    "dcp_size": 4,
    "group": 1,
    "group_kind": "sliding:512",
    "adapter": "lora-a",
    "adapter_generation": 1,
    "extension": {"runner": "v2"},
}
BASE = penstock.NamespaceDescriptor(
    tenant="t", model="m", kv_dtype="bfloat16", block_tokens=16, chunk_tokens=256,
    tp_size=2, pp_size=2, dcp_size=2,
)  # fmt: skip


def test_every_field_is_flipped_below():
    assert set(FIELDS) == {field.name for field in dataclasses.fields(penstock.NamespaceDescriptor)}


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_of_a_descriptor_changes_the_fingerprint_and_every_key(field):
    other = dataclasses.replace(BASE, **{field: FIELDS[field]})
    assert other.fingerprint() != BASE.fingerprint()
    assert penstock.prefix_key(other, None, b"x") != penstock.prefix_key(BASE, None, b"x")
    assert penstock.named_key(other, "x") != penstock.named_key(BASE, "x")


def test_equal_descriptors_have_one_fingerprint_whatever_the_order_of_their_extension():
    one = dataclasses.replace(BASE, extension={"a": "1", "b": "2"})
    other = dataclasses.replace(BASE, extension={"b": "2", "a": "1"})
    assert one == other and hash(one) == hash(other)
    assert one.fingerprint() == other.fingerprint()
    assert one.encode() == other.encode()


@pytest.mark.parametrize(
    "change",
    [
        {"tp_rank": 2},
        {"chunk_tokens": 100},
        {"block_tokens": 0},
        {"tp_size": 0},
        {"model": "x" * 2000},
        {"group": -1},
        {"tp_size": 1 << 32},
        {"adapter_generation": 1 << 64},
        {"extension": {str(i): "" for i in range(100)}},
    ],
)
def test_descriptors_that_make_no_sense_are_refused(change):
    with pytest.raises(penstock.InvalidArgument) as caught:
        dataclasses.replace(BASE, **change).fingerprint()
    assert caught.value.message


@pytest.mark.parametrize(
    "change", [{"model": b"m"}, {"model": None}, {"group": "1"}, {"extension": {"a": 1}}]
)
def test_descriptors_of_the_wrong_type_are_type_errors(change):
    with pytest.raises(TypeError):
        dataclasses.replace(BASE, **change).fingerprint()


def test_the_largest_generation_is_a_generation_of_its_own():
    one = dataclasses.replace(BASE, adapter_generation=(1 << 64) - 1)
    other = dataclasses.replace(BASE, adapter_generation=(1 << 63) - 1)
    assert one.fingerprint() != other.fingerprint()


def test_a_descriptor_survives_pickling():
    descriptor = dataclasses.replace(BASE, extension={"runner": "v1"})
    again = pickle.loads(pickle.dumps(descriptor))
    assert again == descriptor and again.fingerprint() == descriptor.fingerprint()


def test_a_chain_of_keys_is_the_chain_of_single_keys():
    identities = [b"one", bytearray(b"two"), memoryview(b"three"), b""]
    chain = penstock.prefix_keys(BASE, identities)
    parent = None
    for identity, key in zip(identities, chain):
        assert key == penstock.prefix_key(BASE, parent, identity)
        parent = key
    assert penstock.prefix_keys(BASE, identities[2:], parent=chain[1]) == chain[2:]
    assert penstock.prefix_keys(BASE, []) == []
    assert len(set(chain)) == 4 and {len(key) for key in chain} == {32}


def test_the_forms_of_a_namespace_name_the_same_keys():
    key = penstock.named_key(BASE, "x")
    assert penstock.named_key(BASE.fingerprint(), "x") == key
    assert penstock.named_key(BASE.fingerprint_bytes(), "x") == key


def test_keys_of_other_forms_differ():
    tokens = [1, 2, 3]
    as_bytes = b"".join(t.to_bytes(4, "little") for t in tokens)
    assert penstock.prefix_tokens_key(BASE, None, tokens) == penstock.prefix_key(
        BASE, None, as_bytes
    )
    assert penstock.named_key(BASE, "x") != penstock.prefix_key(BASE, None, b"x")
    assert penstock.prefix_key(BASE, bytes(32), b"x") != penstock.prefix_key(BASE, None, b"x")


@pytest.mark.parametrize("parent", [b"short", bytes(33)])
def test_a_parent_that_is_no_key_is_refused(parent):
    with pytest.raises(penstock.InvalidArgument, match="32 bytes"):
        penstock.prefix_key(BASE, parent, b"x")


@pytest.mark.parametrize("tokens", [[-1], [1 << 32], [1 << 70]])
def test_token_ids_out_of_range_are_refused(tokens):
    with pytest.raises(penstock.InvalidArgument, match="token id"):
        penstock.prefix_tokens_key(BASE, None, tokens)


def test_a_str_is_no_identity():
    with pytest.raises(TypeError, match="a buffer is wanted"):
        penstock.prefix_key(BASE, None, "text")


def test_items_for_batches_survive_pickling():
    chunk = penstock.PageChunk(1, bytes(32), [1, 2], None, 256)
    view = penstock.PageView(0, 0, 64, 64, 3)
    result = penstock.MatchResult(1, 2, 3, penstock.Code.OK, "", [])
    for thing in (chunk, view, result, penstock.Code.MISS):
        again = pickle.loads(pickle.dumps(thing))
        assert again == thing and type(again) is type(thing)
