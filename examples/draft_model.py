"""Drafts of a small model, of heads, of prompt lookup, and of all together, on stories260K.

    python examples/draft_model.py

Slots and weights were chosen on other beginnings than the twenty that are decoded here.
"""

from stories260k_draft import load

import lattice_bpd.decode.drafters as ld
from lattice_bpd.decode import DecodeStats, decode

model, lm, small, prompts = load()
sizes, one = {"draft_length": 8, "alpha": 0.6}, {"num_drafts": 1}
cool = {"draft_length": 8, "alpha": 0.5, "temperature": 1.5}
heads, lookup = ld.TreeDrafter(lm, alpha=1.2, temperature=2.5), ld.LookupDrafter()
longer, beam = ld.ContinuationDrafter(heads, lm), ld.DraftModelDrafter(small, shape="beam", **sizes)
drafters = {
    "draft model, its chain": ld.DraftModelDrafter(small, **sizes),
    "its lattice, best path": ld.DraftModelDrafter(small, shape="lattice", lm=lm, **one, **sizes),
    "its lattice, 36-node tree": ld.DraftModelDrafter(small, shape="tree", **sizes),
    "the same, with the 4-gram": ld.DraftModelDrafter(small, shape="tree", lm=lm, **cool),
    "its own 36-node tree": beam,
    "prompt lookup": lookup,
    "heads, 36-node tree": heads,
    "heads, then the 4-gram": longer,
    "heads, 4-gram, lookup": ld.CombinedDrafter([longer, lookup]),
    "all of these": ld.CombinedDrafter([longer, lookup, beam]),
}
options = {"max_new_tokens": 60, "stop_token_ids": [1]}
greedy = decode(model, prompts[:20], ld.NoDrafter(), **options)
for name, drafter in drafters.items():
    total, same = DecodeStats(), 0
    for plain, result in zip(greedy, decode(model, prompts[:20], drafter, **options), strict=True):
        total.merge(result.stats)
        same += result.token_ids == plain.token_ids
    print(f"{name:26} {total.block_efficiency:5.2f} tokens a call, {same} of 20 as greedy")
