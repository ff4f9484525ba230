"""Inside `model.generate` of transformers: its processors and stopping criteria, our loop.

python examples/custom_generate.py
"""

import torch
from tiny_model import load

from lattice_bpd.decode import CustomGenerate

model, heads, lm = load()
prompts = torch.tensor([[5, 6, 7], [0, 3, 4]])
options = {
    "attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]]),
    "max_new_tokens": 40,
    "repetition_penalty": 1.2,
    "bad_words_ids": [[8], [9, 10]],
    "eos_token_id": [11, 12],
}

method = CustomGenerate(heads, "tree", lm=lm, max_nodes=24)
ours = model.generate(prompts, custom_generate=method, **options)

plain = model.generate(prompts, do_sample=False, **options)
assert ours.tolist() == plain.tolist()
calls = [result.stats.target_calls for result in method.results]
tokens = [result.stats.tokens for result in method.results]
print(f"the same {tokens} tokens as plain generate, in {calls} calls")
