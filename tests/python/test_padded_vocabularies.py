"""Draft models, heads and LMs of the target's tokenizer with more or fewer token ids.

The output is that of the model's own `generate`; drafts are those of a source of the target's size.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedModel

from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import decode, generate
from lattice_bpd_drafters.draft_model import DraftModelDrafter
from target_models import PROMPTS, VOCAB, build_target, generated, plain_generate

SIZES = [VOCAB - 2, VOCAB + 8, 2 * VOCAB]
FOREIGN = [*PROMPTS[1], VOCAB - 1, VOCAB - 2, 5, VOCAB - 1, 9]  # ids that a smaller source lacks
FIRST = [*PROMPTS[1], VOCAB - 2, 5, 9]  # the first of them alone
NEW = 24


def resized(model: PreTrainedModel, size: int) -> PreTrainedModel:
    """The model with embeddings of another number of rows."""
    model = copy.deepcopy(model)
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():  # what is added would win every argmax
        model.get_output_embeddings().weight[VOCAB:] = 40.0
    return model.eval()


def lm_of(size: int, **options: Any) -> NGramLM:
    texts = [[*prompt, *output] for prompt, output in zip(PROMPTS, generated("llama"), strict=True)]
    texts = [[token for token in text if token < VOCAB - 2] for text in texts]
    return NGramLM.train(texts * 3, 3, vocab_size=size, smoothing="witten_bell", **options)


def heads_of(size: int) -> Any:
    """Three heads that predict the target's own next tokens by a fixed linear map."""
    weight = torch.randn(3, VOCAB, 32, generator=torch.Generator().manual_seed(1))

    def heads(hidden: torch.Tensor) -> torch.Tensor:
        logits = torch.einsum("bd,hvd->bhv", hidden, weight)
        more = logits.new_full((len(hidden), 3, max(size - VOCAB, 0)), 1e4)
        return torch.cat([logits, more], dim=2)[..., :size]

    return heads


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", ["chain", "beam", "sampled", "sampled_tree"])
def test_draft_models(shape: str, size: int) -> None:
    target = build_target("llama")
    results = [
        decode(target, prompt, DraftModelDrafter(model, shape=shape), max_new_tokens=NEW)
        for prompt, model in (
            (FOREIGN, resized(target, size)), (PROMPTS[0], resized(target, size)),
            (PROMPTS[0], target), (FIRST, resized(target, size)),
        )
    ]  # fmt: skip
    for result, prompt in zip(results, (FOREIGN, PROMPTS[0], PROMPTS[0], FIRST), strict=True):
        assert result.token_ids == plain_generate(target, prompt)
        assert not result.stats.draft_failures
    if shape in ("chain", "beam"):
        assert results[1].stats.accept_lengths == results[2].stats.accept_lengths
        assert results[1].stats.block_efficiency > 2.5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("strategy", ["ngram", "tree", "chain", "neural", "mixture"])
def test_lms_and_heads(strategy: str, size: int) -> None:
    target = build_target("llama")
    for prompt in (PROMPTS[0], FOREIGN):
        lengths = []
        for lm_size, heads_size in ((VOCAB, VOCAB), (size, VOCAB), (VOCAB, size), (size, size)):
            result = generate(
                target, prompt, strategy, heads=heads_of(heads_size), lm=lm_of(lm_size),
                max_new_tokens=NEW,
            )  # fmt: skip
            assert result.token_ids == plain_generate(target, prompt)
            assert not result.stats.draft_failures
            assert not result.stats.draft_failures
            lengths.append(result.stats.accept_lengths)
        if strategy != "mixture":  # its sizes depend on time
            assert lengths[1] == lengths[0]
        if strategy in ("tree", "chain"):  # more candidates than the heads have token ids
            config = DraftConfig(strategy, top_k=VOCAB)
            result = generate(target, prompt, config, heads=heads_of(size), max_new_tokens=NEW)
            assert result.token_ids == plain_generate(target, prompt)


def saved(model: PreTrainedModel, folder: Path, words: list[str]) -> PreTrainedModel:
    """The model, loaded from a folder with a tokenizer of these words."""
    model.save_pretrained(folder)
    ids = {word: token_id for token_id, word in enumerate(words)}
    Tokenizer(models.WordLevel(ids, unk_token=words[0])).save(str(folder / "tokenizer.json"))
    return AutoModelForCausalLM.from_pretrained(folder)


def test_tokenizers_are_compared_where_they_are_known(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(VOCAB - 4)]
    target = saved(build_target("llama"), tmp_path / "target", words)
    for name, size, own in (
        ("more words", VOCAB + 8, [*words, "<tool>", "<think>"]),
        ("fewer words", VOCAB, words[:-9]),
    ):
        draft = saved(resized(target, size), tmp_path / name, own)
        result = generate(target, FOREIGN, "draft_model", lm=draft, max_new_tokens=NEW)
        assert result.token_ids == plain_generate(target, FOREIGN)
        assert result.stats.block_efficiency > 1.5
    for name, size, own in (
        ("other", VOCAB + 8, [f"x{number}" for number in range(VOCAB - 4)]),
        ("shifted", 2 * VOCAB, ["<pad>", *words]),
    ):
        draft = saved(resized(target, size), tmp_path / name, own)
        with pytest.raises(
            ValueError, match=r"tokenizers .* differ in [0-9]+ of .*expected the same"
        ):
            generate(target, FOREIGN, "draft_model", lm=draft)
