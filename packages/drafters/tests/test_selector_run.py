"""`drafter train --selector` from files to files: result, resumed runs, decoding, refusals."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from heads_training import (
    HEADS,
    check_resumed,
    read_losses,
    read_weights,
    write_base,
    write_text,
)

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import FormatError, NGramLM
from lattice_bpd.cli import main
from lattice_bpd.decode import CustomGenerate, DecodeState, DraftingModel, generate
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.models import BlockwiseLM
from lattice_bpd.models.checkpoint import load_target
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.block_run import new_drafter
from lattice_bpd_drafters.block_training import config_for
from lattice_bpd_drafters.medusa_heads import MedusaHeads
from lattice_bpd_drafters.selector import SelectorHeads
from lattice_bpd_drafters.selector_run import SelectorJob, run_selector_job
from lattice_bpd_drafters.selector_texts import SelectorOptions

TRAIN = SelectorOptions(
    rank=6, top_k=8, steps=12, batch_size=4, anchors=6, sequence_length=20, warmup=2,
    learning_rate=0.05,
)  # fmt: skip
STRATEGIES = ("bpd", "ngram", "p_best", "chain", "tree", "mixture")


def write_model(folder: Path, kind: str = "heads", base: Any = None) -> Path:
    """A model folder with heads of random weights."""
    base = load_target(write_base(folder / "base")) if base is None else base
    torch.manual_seed(1)
    if kind == "drafter":
        heads: Any = new_drafter(base, config_for(base, 1, 4, VOCAB - 1), 0)
    elif kind == "medusa":
        heads = MedusaHeads.from_target(base, HEADS - 1)
    else:
        heads = BlockwiseLM(base, HEADS).heads
        for weight in heads.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    BlockwiseLM(base, heads=heads).save_pretrained(folder / "model")
    return folder / "model"


def make_job(folder: Path, kind: str = "heads", **options: Any) -> SelectorJob:
    """A short run on files in `folder`, which are written where they are missing."""
    if not (folder / "model").is_dir():
        write_model(folder, kind)
    fields: dict[str, Any] = {
        "corpus": {"vocab_size": VOCAB}, "options": TRAIN, "validate_every": 5, "own_rows": 70,
        "prompt_length": 4, "validation_share": 0.2, "validation_pieces": 4, "log_every": 3,
        "checkpoint_every": 4, "device": "cpu", **options,
    }  # fmt: skip
    return SelectorJob(folder / "model", folder / "out", [str(write_text(folder))], **fields)


def test_a_killed_training_ends_with_the_same_bits(tmp_path):
    plain, resumed = check_resumed(make_job(tmp_path), run_selector_job, tmp_path)
    assert "selector: successor_codebook" in read_weights(tmp_path / "out")
    assert (resumed.losses, resumed.scores) == (plain.losses, plain.scores)


def states_of(model: BlockwiseLM, drafting: DraftingModel, tokens: list[int]) -> list[DecodeState]:
    with torch.inference_mode():
        hidden = model.hidden_states(torch.tensor([tokens[:-1]]))[0, -1]
    state = DecodeState(drafting, tokens, len(tokens) - 1, hidden, 9, DecodeStats())
    state.num_slots = state.max_draft_length = drafting.num_slots or 0
    features = drafting.target.read_prompts(torch.tensor([tokens[:-1]]))[0].features
    if features is not None:
        state.features.append(features[0])
    return [state]


@pytest.mark.parametrize("kind", ["heads", "medusa", "drafter"])
def test_the_result_is_a_model_folder(kind, tmp_path):
    job = make_job(tmp_path, kind)
    result = run_selector_job(job)
    assert result.tokens == 70 * 20
    steps = [line["step"] for line in read_losses(result.output) if "validation" in line]
    assert steps == [5, 10, 12]
    scores = result.scores
    assert scores is not None
    assert len(scores.accuracy) == len(result.losses) == (3 if kind == "drafter" else HEADS - 1)
    assert scores.blocks > 0
    assert "slot 2" in (result.output / "losses.svg").read_text()

    before, saved = read_weights(tmp_path / "model"), read_weights(result.output)
    assert all(torch.equal(saved[name], weight) for name, weight in before.items())
    model = BlockwiseLM.from_pretrained(result.output)
    again = BlockwiseLM.from_pretrained(result.output)
    if kind == "drafter":
        assert isinstance(model.heads, BlockDrafter)
        content = json.loads((result.output / "block_drafter/config.json").read_text())
        assert content["architectures"] == ["DFlash2DraftModel"]
    else:
        assert isinstance(DraftingModel(model).heads, SelectorHeads)
        again.save_pretrained(tmp_path / "copied")
        again = BlockwiseLM.from_pretrained(tmp_path / "copied")
    lattices = []
    for one in (model, again):
        drafting = DraftingModel(one)
        lattices.append(drafting.read_heads(states_of(one, drafting, [3, 1, 6, 11])))
    for field in ("token_ids", "scores", "start", "transitions"):
        assert torch.equal(getattr(lattices[0], field), getattr(lattices[1], field))
    assert lattices[0].transitions.std(dim=2).max() > 0  # candidates depend on those before them

    run_again = run_selector_job(job)
    assert run_again.was_finished
    assert run_again.scores == scores
    with pytest.raises(ValueError, match="holds a run with rank 6; requested: 5"):
        run_selector_job(dataclasses.replace(job, options=dataclasses.replace(TRAIN, rank=5)))


@pytest.mark.parametrize("kind", ["heads", "medusa", "drafter"])
def test_output_is_that_of_generate(kind, tmp_path):
    write_model(tmp_path, kind, model_of("trained").base)
    model = BlockwiseLM.from_pretrained(run_selector_job(make_job(tmp_path, kind)).output)
    ids = torch.tensor([[1, 6, 11, 16]])
    plain = model.base.generate(ids, max_new_tokens=14, do_sample=False)
    expected = plain[0, 4:].tolist()
    assert len(set(expected)) > 5
    calls = []
    for strategy in STRATEGIES:
        options = {"lm": cycle_lm()} if strategy == "ngram" else {}
        result = generate(model, ids[0], strategy, max_new_tokens=14, **options)
        assert result.token_ids == expected
        calls.append(result.stats.target_calls)
    assert min(calls) < 14  # some drafts are accepted
    custom = CustomGenerate(model, "tree", max_nodes=6)
    output = model.base.generate(ids, max_new_tokens=14, do_sample=False, custom_generate=custom)
    assert torch.equal(output, plain)


def cycle_lm() -> NGramLM:
    return NGramLM.train([looping_text(2000)], 2, vocab_size=VOCAB, smoothing="witten_bell")


def test_the_command(tmp_path, capsys):
    job = make_job(tmp_path)
    command = ["drafter", "train", str(job.inputs[0]), "--selector", "low-rank", "--target",
               str(job.target), "-o", str(tmp_path / "cli"), "--vocab-size", str(VOCAB), "--rank",
               "4", "--top-k", "8", "--steps", "3", "--own-rows", "4", "--prompt-length", "4",
               "--sequence-length", "20", "--validation-pieces", "3"]  # fmt: skip
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "accuracy before" in output
    assert "accepted draft tokens of a greedy walk on validation text" in output
    assert "3 steps" in output
    assert isinstance(BlockwiseLM.from_pretrained(tmp_path / "cli").heads, SelectorHeads)
    for extra, message in (
        (["--num-layers", "2"], "--num-layers is not used for --selector"),
        (["--other-lr", "0.1"], "--other-lr is not used"),
    ):
        assert main([*command, *extra]) != 0
        assert message in capsys.readouterr().err
    plain = [part for part in command if part not in ("--selector", "low-rank")]
    assert main(plain) != 0
    assert "--rank is not used for a block drafter; give --selector" in capsys.readouterr().err


def test_a_folder_whose_selector_does_not_fit_is_refused(tmp_path):
    folder = run_selector_job(make_job(tmp_path)).output
    header = folder / "selector/candidate_selector.json"
    content = json.loads(header.read_text())
    for change, message in (
        ({"version": 2}, "format version 2, expected 1"),
        ({"format": "x"}, "is not a"),
        ({"num_slots": 1}, "weights cannot be read"),
    ):
        header.write_text(json.dumps(content | change))
        with pytest.raises(FormatError, match=message):
            BlockwiseLM.from_pretrained(folder)
    header.unlink()
    with pytest.raises(FormatError, match="cannot be read"):
        BlockwiseLM.from_pretrained(folder)
    header.write_text(json.dumps(content))
    model = BlockwiseLM.from_pretrained(folder)
    heads = MedusaHeads.from_target(model.base, 3)
    with pytest.raises(ValueError, match=r"\(48, 16, 2\); expected \(48, 16, 3\)"):
        SelectorHeads(heads, model.heads.selector)
    other = tmp_path / "other"
    BlockwiseLM(model.base, heads=heads).save_pretrained(other)
    shutil.copytree(folder / "selector", other / "selector")
    with pytest.raises(FormatError, match=r"expected \(48, 16, 3\).*remove this folder"):
        BlockwiseLM.from_pretrained(other)
    BlockwiseLM(model.base, heads=model.heads.heads).save_pretrained(folder)
    assert not (folder / "selector").exists()
