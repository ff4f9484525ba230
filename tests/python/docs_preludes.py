"""Substitutes for a reader's own model and files when the examples of a page are run.

Each function gives the names that a page takes for granted, and may write files into the current
folder. A page without one runs unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import NGramLM

Names = dict[str, Any]


def _decoding() -> Names:
    """A tiny target, its heads, an LM trained on its output, and prompts."""
    torch: Any = pytest.importorskip("torch")
    from blockwise_models import VOCAB, looping_text, random_model, trained_model

    blockwise = trained_model()
    lm = NGramLM.train([looping_text()], 3, vocab_size=VOCAB, smoothing="witten_bell")
    prompt = [0, 5, 10, 15]
    return {
        "VOCAB": VOCAB, "blockwise": blockwise, "model": blockwise.base,
        "heads": blockwise.heads, "lm": lm,
        "small": random_model("gpt2").base, "prompt_ids": prompt, "prompt": prompt,
        "input_ids": prompt,
        "inputs": {"input_ids": torch.tensor([prompt]), "max_new_tokens": 20},
        "prompts": [prompt, [1, 6], [7, 12, 17]], "sequences": [looping_text()],
    }  # fmt: skip


def decoding() -> Names:
    """With a tokenizer whose words are token ids, and another whose tokens are single bytes."""
    pytest.importorskip("llguidance")
    names = _decoding()
    names["lm"].save("corpus.lm")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(i): i for i in range(names["VOCAB"])}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    template = "{% for message in messages %}{{ message['content'] }} 1 {% endfor %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template)
    letters = b'0123456789-{}":, abcdefghijklmnopqrstuvwxyz.[]/'
    return {
        **names, "tokenizer": tokenizer, "text": "0 5 10", "questions": ["5 10", "3", "7 8"],
        "tokens": [b"<end>", *(bytes([letter]) for letter in letters)][: names["VOCAB"]],
    }  # fmt: skip


def evaluate() -> Names:
    """A drafter has been tuned for the model there."""
    names = _decoding()
    from lattice_bpd.decode.drafter_file import DrafterFile
    from lattice_bpd.draft import DraftConfig

    blockwise = names["blockwise"]
    sizes = {"file": "corpus.lm", "order": 3, "vocab_size": names["VOCAB"]}
    file = DrafterFile(DraftConfig("tree"), names["VOCAB"], blockwise.num_slots, sizes)
    file.save("drafter.json")
    return names


def ngram() -> Names:
    """Token ids of GPT-2's vocabulary size."""
    rng = np.random.default_rng(0)
    text = [rng.zipf(1.3, 200).clip(max=500) for _ in range(60)]
    return {"sequences": text[:50], "heldout": text[50:]}


def rescoring() -> Names:
    """English text that every Python has."""
    pytest.importorskip("jiwer")
    from pydoc_data.topics import topics

    Path("text.txt").write_text("\n".join(topics.values()), encoding="utf-8")
    return {}


def translation() -> Names:
    """A tiny encoder-decoder, sources, and an LM of its vocabulary."""
    pytest.importorskip("torch")
    from seq2seq_models import VOCAB, model_of, sources

    texts = sources(12, seed=0)
    lm = NGramLM.train(texts, 2, vocab_size=VOCAB, smoothing="witten_bell")
    return {"model": model_of("marian"), "source": texts[0], "sources": texts, "lm": lm}


PRELUDES = {
    "README.md": _decoding,
    "docs/build.md": _decoding,
    "docs/decoding.md": decoding,
    "docs/drafters.md": _decoding,
    "docs/exactness.md": _decoding,
    "docs/ngram.md": ngram,
    "docs/rescoring.md": rescoring,
    "packages/constraints/README.md": decoding,
    "packages/translation/README.md": translation,
    "research/kim2024/README.md": _decoding,
    "research/kim2024/evaluate.md": evaluate,
}
