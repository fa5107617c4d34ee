import dataclasses

import pytest
from penstock_vllm.config import ConfigError, ConnectorConfig


def test_nothing_given_is_a_complete_configuration():
    config = ConnectorConfig.parse({})
    assert config.url == "tcp://127.0.0.1:7411"
    assert config == ConnectorConfig()


@pytest.mark.parametrize(
    "key,near",
    [("ur1", "url"), ("chunk_token", "chunk_tokens"), ("loadtimeout_ms", "load_timeout_ms")],
)
def test_mistyped_key_names_the_right_one(key, near):
    with pytest.raises(ConfigError, match=f'no key "{key}"; did you mean "{near}"'):
        ConnectorConfig.parse({key: 1})


def test_key_unlike_any_other_lists_them_all():
    with pytest.raises(ConfigError) as error:
        ConnectorConfig.parse({"zzzzzz": 1})
    for field in dataclasses.fields(ConnectorConfig):
        assert field.name in str(error.value)


@pytest.mark.parametrize(
    "extra",
    [
        {"chunk_tokens": "256"},
        {"chunk_tokens": -1},
        {"chunk_tokens": True},
        {"store": 1},
        {"wire": "rdma"},
        {"url": "localhost:7411"},
        {"load_timeout_ms": 0},
        {"pinned_blocks_percent": 101},
        {"breaker_min_ms": 1000, "breaker_max_ms": 10},
    ],
)
def test_wrong_value_is_refused_with_the_key_in_the_text(extra):
    with pytest.raises(ConfigError) as error:
        ConnectorConfig.parse(extra)
    assert next(iter(extra)) in str(error.value) or "breaker_max_ms" in str(error.value)


def test_whole_number_is_taken_for_a_fraction():
    assert ConnectorConfig.parse({"reserve_ttl_s": 5}).reserve_ttl_s == 5.0


def test_every_key_is_described():
    lines = ConnectorConfig.describe().splitlines()
    assert len(lines) == len(dataclasses.fields(ConnectorConfig))
    assert all(len(line.split(": ", 1)[1]) > 8 for line in lines)
