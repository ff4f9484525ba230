"""Decoding faster in three lines: a causal LM, anything that gives head logits, an n-gram LM.

python examples/generate.py
"""

from collections import Counter

from tiny_model import load

from lattice_bpd.decode import generate

model, heads, lm = load()  # yours: AutoModelForCausalLM, load_heads(..), NGramLM.load(..)

result = generate(model, [5, 6, 7], heads=heads, lm=lm, max_new_tokens=60)

stats = result.stats
print(f"{stats.tokens} tokens in {stats.target_calls} calls: {result.token_ids[:8]} ..")
print(f"calls by the number of draft tokens that they kept: {Counter(stats.accept_lengths)}")

# The same tokens as greedy decoding, alone and in a batch of prompts of any lengths:
prompts = [[5, 6, 7], [1], [9, 9, 2, 4, 3]]
plain = generate(model, prompts, "greedy", max_new_tokens=60)
tree = generate(model, prompts, "tree", heads=heads, max_new_tokens=60)
assert [f.token_ids for f in plain] == [f.token_ids for f in tree]
assert result.token_ids == plain[0].token_ids
print(f"{len(prompts)} prompts together: {[f.stats.target_calls for f in tree]} calls")
