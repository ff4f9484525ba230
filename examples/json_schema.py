"""Text that obeys a JSON schema, in fewer calls of the target.

    python examples/json_schema.py

With a model of yours, give its tokenizer (AutoTokenizer.from_pretrained(..)) instead of TOKENS.
"""

import json

from tiny_model import VOCAB, load

from lattice_bpd.decode import generate
from lattice_bpd_constraints import GuidanceConstraint

LETTERS = b'abcdefghijklmnopqrstuvwxyz0123456789{}":, []-.'
WORDS = [b'": ', b'", "', b'{"', b"name", b"size", b"count", b"small", b"large", b"th", b"in"]
TOKENS = [b"<end>", *(bytes([letter]) for letter in LETTERS), *WORDS]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z ]{3,12}$"},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 999},
    },
    "required": ["name", "size", "count"],
    "additionalProperties": False,
}

model, heads, lm = load()
constraint = GuidanceConstraint.from_json_schema(
    SCHEMA, TOKENS, vocab_size=VOCAB, end_token_ids=[0], whitespace=False
)
# Greedy among what is allowed:
result = generate(model, [5, 6, 7], heads=heads, lm=lm, constraint=constraint)
text = b"".join(TOKENS[token] for token in result.token_ids[:-1])
print(json.loads(text))
print(f"{result.stats.tokens} tokens in {result.stats.target_calls} calls")
