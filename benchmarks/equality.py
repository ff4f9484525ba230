"""Counts texts and positions that equal plain greedy decoding, beside transformers' own drafting.

    python benchmarks/equality.py MODEL --dtype bfloat16    # a chat model's folder

Greedy decoding is `model.generate(do_sample=False)`. A position agrees if `generate`, made to write
the text, selects the token there; of the others the largest margin is printed, by which it prefers
another token. Prints Markdown.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lattice_bpd import decode as decoding
from lattice_bpd.decode.certificate.own_generate import Choices, write_plainly

PROMPTS = Path(__file__).parent / "prompts" / "prompts.jsonl"
_NOISE = 0.05  # of the draft model's weights, which are otherwise the model's


def read_prompts(path: Path, count: int, tokenizer: Any) -> list[list[int]]:
    """Evenly spaced prompts in the chat template."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    single = [line for line in lines if "messages" in line]  # the others have several turns
    chosen = single[:: max(1, len(single) // count)][:count]
    return [
        tokenizer.apply_chat_template(line["messages"][:1], add_generation_prompt=True)["input_ids"]
        for line in chosen
    ]


@torch.no_grad()
def make_draft_model(model: Any) -> Any:
    """The model with noise on its weights."""
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for weight in noisy.parameters():
        if weight.ndim >= 2:
            noise = torch.randn(weight.shape, generator=generator)
            weight.mul_(1 + _NOISE * noise.to(weight))
    return noisy


def generate(model: Any, prompt: Sequence[int], count: int, **options: Any) -> list[int]:
    """The new tokens of the model's own `generate`."""
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, **options
    )
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="a folder of transformers")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=args.dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    prompts = read_prompts(PROMPTS, args.prompts, tokenizer)
    small, count = make_draft_model(model), args.tokens

    def ours(strategy: str, layout: str, **sources: Any) -> Callable[[list[int]], list[int]]:
        options = {"layout": layout, "max_new_tokens": count, **sources}
        return lambda prompt: decoding.generate(model, prompt, strategy, **options).token_ids

    methods: dict[str, Callable[[list[int]], list[int]]] = {
        "transformers, prompt lookup":
            lambda prompt: generate(model, prompt, count, prompt_lookup_num_tokens=5),
        "transformers, assisted by a draft model":
            lambda prompt: generate(model, prompt, count, assistant_model=small),
        "this library, `mixture` of the text so far": ours("mixture", "auto"),
        "this library, `draft_model`": ours("draft_model", "auto", lm=small),
    }  # fmt: skip
    greedy = [generate(model, prompt, count) for prompt in prompts]
    print(f"| {args.dtype} | equal texts | agreeing positions | largest margin |")
    print("|---|---|---|---|")
    for name, method in methods.items():
        equal, positions, agreeing, margin = 0, 0, 0, 0.0
        for prompt, expected in zip(prompts, greedy, strict=True):
            output = method(prompt)
            choices = Choices(output)
            write_plainly(model, prompt, output, choices)
            equal += output == expected
            positions += len(output)
            agreeing += len(output) - len(choices.differing)
            margin = max(margin, -min(choices.margins))
        share = f"{agreeing:,} of {positions:,} ({agreeing / positions:.1%})"
        print(f"| {name} | {equal} of {len(prompts)} | {share} | {margin:.3g} |", flush=True)


if __name__ == "__main__":
    main()
