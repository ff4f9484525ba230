"""Counts texts that differ from plain greedy decoding, and says which of them are ties.

    python benchmarks/check_lossless.py --prompts 1000
    python benchmarks/check_lossless.py --prompts 100 --dtype bfloat16

Random GPT-2, Llama (grouped keys) and Mistral (sliding window) targets, each with random heads, in
every strategy, verified as a tree and as rows, alone and eight prompts at a time. Calls of
different shapes round differently, so a text may leave greedy's where two logits all but tie. A
text that does is decoded once more with a certificate: it is a tie unless the verdict is
"different". One JSON object a line; the exit status is 1 after a failure.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.draft.config import STRATEGIES as DRAFT_STRATEGIES
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.blockwise import BlockwiseLM

VOCAB, POSITIONS = 96, 128
# of a call's arguments and output; transformers 5.24 renamed it
CACHE_NAME = "cache" if "cache" in CausalLMOutputWithPast.__annotations__ else "past_key_values"
STRATEGIES = ("bpd", "ngram", "p_best", "p_best_0gram", "tree", "tree_0gram")
BATCH = 8


def build(name: str, dtype: torch.dtype) -> BlockwiseLM:
    """A random target whose choices vary."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": POSITIONS,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    if name == "gpt2":
        base: Any = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=2,
                       bos_token_id=None, eos_token_id=None)
        )  # fmt: skip
    elif name == "llama":
        base = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        base = MistralForCausalLM(MistralConfig(sliding_window=16, head_dim=8, **sizes))
    model = BlockwiseLM(base, num_heads=6)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, 0.3)
    return model.eval().to(dtype)


@torch.inference_mode()
def greedy_alone(
    model: BlockwiseLM, prompt: list[int], count: int
) -> tuple[list[int], list[float]]:
    """One token at a time with transformers' own cache; each token's lead over the next best."""
    tokens, margins, cache = list(prompt), [], None
    row = torch.tensor([prompt])
    for _ in range(count):
        cache_input = {} if cache is None else {CACHE_NAME: cache}
        output = model.base(input_ids=row, use_cache=True, **cache_input)
        cache = getattr(output, CACHE_NAME)
        best = output.logits[0, -1].float().topk(2)
        tokens.append(int(output.logits[0, -1].argmax()))
        margins.append(float(best.values[0] - best.values[1]))
        row = torch.tensor([[tokens[-1]]])
    return tokens[len(prompt) :], margins


def check(
    model: BlockwiseLM, lm: NGramLM, prompts: list[list[int]], count: int
) -> Iterator[dict[str, Any]]:
    """One line for each strategy, layout and batch size."""
    wanted = [greedy_alone(model, prompt, count) for prompt in prompts]
    for strategy, layout, batch in itertools.product(STRATEGIES, ("tree", "rows"), (1, BATCH)):
        name = strategy.removesuffix("_0gram")
        uses_lm = name == strategy and DRAFT_STRATEGIES[name].uses("lm")
        config = DraftConfig(name, top_k=8, num_drafts=6, max_nodes=24)
        options: dict[str, Any] = {
            "heads": model.heads, "lm": lm if uses_lm else None, "layout": layout,
            "max_new_tokens": count,
        }  # fmt: skip
        calls, ties, failures = 0, [], []
        for start in range(0, len(prompts), batch):
            texts = prompts[start : start + batch]
            results = generate(model.base, texts, config, **options)
            calls += sum(result.stats.target_calls for result in results)
            pairs = zip(results, wanted[start : start + batch], strict=True)
            differing = [
                n for n, (ours, (theirs, _)) in enumerate(pairs) if ours.token_ids != theirs
            ]
            if differing:
                again = generate(model.base, texts, config, certificate="report", **options)
            for number in differing:
                tokens, margins = wanted[start + number]
                index = first_difference(results[number].token_ids, tokens)
                tied = again[number].certificate.verdict != "different"
                (ties if tied else failures).append(margins[index])
        yield {
            "strategy": strategy, "layout": layout, "batch": batch, "prompts": len(prompts),
            "block_efficiency": round(len(prompts) * count / calls, 3),
            "ties": len(ties), "largest_tie": round(max(ties, default=0.0), 7),
            "failures": len(failures), "largest_margin": round(max(failures, default=0.0), 7),
        }  # fmt: skip


def first_difference(token_ids: list[int], others: list[int]) -> int:
    pairs = enumerate(zip(token_ids, others, strict=True))
    return next(index for index, (ours, theirs) in pairs if ours != theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=1000, help="in all, over three models")
    parser.add_argument("--tokens", type=int, default=32, help="decoded after each")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # Katz smoothing finds random text odd
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    lm = NGramLM.train([rng.integers(0, VOCAB, 4000)], 3, vocab_size=VOCAB)
    names, failures = ("gpt2", "llama", "mistral"), 0
    for index, name in enumerate(names):
        count = args.prompts // len(names) + (index < args.prompts % len(names))
        prompts = [rng.integers(0, VOCAB, rng.integers(1, 40)).tolist() for _ in range(count)]
        model = build(name, getattr(torch, args.dtype))
        for line in check(model, lm, prompts, args.tokens):
            print(json.dumps({"model": name, "dtype": args.dtype, **line}), flush=True)
            failures += line["failures"]
    if failures:
        sys.exit(f"check_lossless: {failures} texts are not greedy's, and no tie explains it")


if __name__ == "__main__":
    main()
