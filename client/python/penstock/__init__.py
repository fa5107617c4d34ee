"""Penstock: a distributed KV-cache storage and transfer tier for LLM serving.

client = penstock.Client("tcp://127.0.0.1:7411")
ns = client.namespace(penstock.NamespaceDescriptor(model="m", kv_dtype="bfloat16"))
key = penstock.named_key(ns, "greeting")
client.put(ns, key, b"hello")
assert client.get(ns, key) == b"hello"
"""

from ._client import (
    Client,
    GetResult,
    MatchDetail,
    MatchGroup,
    MatchResult,
    PutItem,
    Stat,
)
from ._core import Namespace, __version__
from ._namespace import (
    NamespaceDescriptor,
    named_key,
    prefix_key,
    prefix_keys,
    prefix_tokens_key,
)
from ._operation import Op
from ._pages import SKIPPED_BLOCK, PageChunk, PageLayout, PageStore, PageView
from ._status import (
    BadBuffer,
    Code,
    DeadlineExceeded,
    Disconnected,
    InvalidArgument,
    Miss,
    PenstockError,
)

__all__ = [
    "SKIPPED_BLOCK",
    "BadBuffer",
    "Client",
    "Code",
    "DeadlineExceeded",
    "Disconnected",
    "GetResult",
    "InvalidArgument",
    "MatchDetail",
    "MatchGroup",
    "MatchResult",
    "Miss",
    "Namespace",
    "NamespaceDescriptor",
    "Op",
    "PageChunk",
    "PageLayout",
    "PageStore",
    "PageView",
    "PenstockError",
    "PutItem",
    "Stat",
    "__version__",
    "named_key",
    "prefix_key",
    "prefix_keys",
    "prefix_tokens_key",
]
