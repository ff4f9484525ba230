"""Real head logits: those of the demo's model at positions of held-out text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from corpus import ROOT
from lattices import CONTEXT, Lattices

from lattice_bpd import NGramLM


class Recording(NamedTuple):
    """Lattices of a trained model, and its own LM.

    Attributes:
        lattices: Of H slots.
        logits: (N, H, V) float32, what they were selected from.
        lm: The demo's n-gram LM.
    """

    lattices: Lattices
    logits: npt.NDArray[np.float32]
    lm: NGramLM


def find_demo_model(directory: Path | None) -> Path | None:
    """The folder of a model that `make demo` trained; None where there is none."""
    folders = (
        [directory] if directory else [ROOT / "demo-out" / n for n in ("model", "model-quick")]
    )
    return next((folder for folder in folders if (folder / "recipe.json").is_file()), None)


def record_lattices(directory: Path, count: int, top_k: int) -> Recording:
    """Head logits after prompts from held-out files, cut to k candidates.

    Raises:
        ImportError: torch, transformers or tokenizers are missing.
        FormatError: The model's files are damaged.
    """
    import torch
    from tokenizers import Tokenizer

    from lattice_bpd.lattice.logits import select_top_k
    from lattice_bpd_kim2024.blockwise import BlockwiseLM
    from lattice_bpd_kim2024.demo.library_text import draw_prompts, read_library_sources

    tokenizer: Any = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = BlockwiseLM.from_pretrained(directory)
    texts = read_library_sources().test
    documents = [np.array(e.ids, np.int32) for e in tokenizer.encode_batch(texts)]
    prompts = torch.tensor(draw_prompts(documents, count, 48, 0, seed=0))
    logits, exact = [], []
    with torch.inference_mode():
        for part in prompts.split(50):
            hidden = model.hidden_states(part)[:, -1]
            exact.append(model.output_embedding(hidden).argmax(-1, keepdim=True))
            logits.append(model.head_logits(hidden).float())
    head_logits = torch.cat(logits).numpy()
    contexts = torch.cat([prompts, torch.cat(exact)], 1)[:, -CONTEXT:]
    best = select_top_k(head_logits, top_k, log_softmax=False, where="record_lattices")
    lattices = Lattices(best.token_ids, best.scores, contexts.numpy().astype(np.int32))
    return Recording(lattices, head_logits, NGramLM.load(directory / "ngram.lm"))
