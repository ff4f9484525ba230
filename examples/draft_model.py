"""Drafts of a small model, of heads, and of a mixture of heads, LM and text, on stories260K.

    python examples/draft_model.py

Slots and weights were chosen on other beginnings than the twenty that are decoded here.
"""

from stories260k_draft import load

import lattice_bpd.decode.drafters as ld
from lattice_bpd.decode import DecodeStats, decode
from lattice_bpd_drafters.draft_model import DraftModelDrafter

blockwise, lm, small, prompts = load()
model = blockwise.base
drafters = {
    "draft model, its chain": DraftModelDrafter(small, draft_length=8),
    "its 36-node tree": DraftModelDrafter(small, draft_length=8, max_nodes=36),
    "heads, 36-node tree": ld.TreeDrafter(lm, alpha=1.2, temperature=2.5),
    "mixture, 36 nodes": ld.MixtureDrafter([lm], heads=True, max_nodes=36),
}
options = {"heads": blockwise.heads, "max_new_tokens": 60, "stop_token_ids": [1]}
greedy = decode(model, prompts[:20], ld.NoDrafter(), **options)
for name, drafter in drafters.items():
    total, same = DecodeStats(), 0
    for plain, result in zip(greedy, decode(model, prompts[:20], drafter, **options), strict=True):
        total.merge(result.stats)
        same += result.token_ids == plain.token_ids
    print(f"{name:26} {total.block_efficiency:5.2f} tokens a call, {same} of 20 as greedy")
