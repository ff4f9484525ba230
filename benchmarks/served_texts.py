"""What a store of served texts gains over the text alone: a replay of similar requests.

    python benchmarks/served_texts.py MODEL

Tokens per call of the target, one chain of up to 8 draft tokens a call, each request once. "alone":
the text so far; "store": and the texts of the requests before it, as the vLLM plug-in's option
`store` keeps them.
"""

from __future__ import annotations

import argparse

from transformers import AutoModelForCausalLM, AutoTokenizer

from lattice_bpd.decode import generate
from lattice_bpd.decode.drafters.mixture import MixtureDrafter
from lattice_bpd.draft.mixture import TextStore

TEMPLATES = (
    "Write a short product description for {}, with three bullet points.",
    "Write a polite email to a customer whose order of {} is late.",
    "Write a Python function that returns the price of {} from a dictionary, with a docstring.",
)
ITEMS = (
    "a blue kettle", "a garden chair", "running shoes", "a desk lamp", "a cotton shirt",
    "a travel mug", "a bicycle helmet", "a wool blanket", "a phone case", "a wooden table",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="directory or hub name")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer (default 64)")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    store = TextStore()
    drafters = {
        "alone": MixtureDrafter(max_nodes=8),
        "store": MixtureDrafter(max_nodes=8, store=store),
    }
    calls = {name: [0, 0] for name in drafters}  # calls and tokens
    for number, item in enumerate(ITEMS):
        for template in TEMPLATES:
            messages = [{"role": "user", "content": template.format(item)}]
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            for name, drafter in drafters.items():
                stats = generate(
                    model, text, drafter, tokenizer=tokenizer, max_new_tokens=args.tokens
                ).stats
                calls[name][0] += stats.target_calls
                calls[name][1] += stats.tokens
        rates = ", ".join(f"{name} {tokens / n:.2f}" for name, (n, tokens) in calls.items())
        print(f"{(number + 1) * len(TEMPLATES)} requests: tokens per call {rates}")


if __name__ == "__main__":
    main()
