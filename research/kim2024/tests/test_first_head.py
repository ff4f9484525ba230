"""Head 1 with a network of its own, and the preset kim2024: formulas, decoding, files, refusals."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch")

import torch
from heads_training import HEADS, T, make_job, read_losses, read_weights
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from blockwise_models import VOCAB, looping_text, model_of, output_of, plain_greedy
from lattice_bpd import DraftConfig, extensions
from lattice_bpd.cli import main
from lattice_bpd.decode import generate
from lattice_bpd.models.checkpoint import load_target
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.first_head import FirstHead, attach_first_head
from lattice_bpd_kim2024.heads.options import HeadText
from lattice_bpd_kim2024.heads.run import train_heads
from lattice_bpd_kim2024.heads.trainer import HeadTrainer
from lattice_bpd_kim2024.small_models import build_small_gpt


def make_model(seed: int = 0) -> BlockwiseLM:
    """A small model whose head 1 has a network with random weights."""
    torch.manual_seed(seed)
    model = build_small_gpt(VOCAB, hidden_size=16, num_layers=1, num_heads=HEADS, max_positions=64)
    attach_first_head(model.base, 24)
    with torch.no_grad():
        for weight in model.parameters():  # outputs that vary
            if weight.ndim == 2:
                torch.nn.init.normal_(weight, std=0.4)
    return model


def plain_logits(model: BlockwiseLM, ids: torch.Tensor) -> list[torch.Tensor]:
    """Logits of heads 1..h as in the paper: E(x + W2 silu(W1 x + b1) + b2), for each head."""
    hidden = model.base.base_model(input_ids=ids).last_hidden_state
    network = model.base.get_output_embeddings().network
    table = model.base.get_input_embeddings().weight  # tied
    width, heads = hidden.shape[-1], model.heads
    inner, outer = heads.inner_size, heads.outer_weight.view(-1, width, heads.inner_size)
    logits = [hidden + network.outer(F.silu(network.inner(hidden)))]
    for slot in range(heads.num_slots):
        rows = slice(slot * inner, (slot + 1) * inner)
        first = F.silu(hidden @ heads.inner.weight[rows].T + heads.inner.bias[rows])
        logits.append(hidden + first @ outer[slot].T + heads.outer_bias[slot])
    return [states @ table.T for states in logits]


@torch.no_grad()
def test_every_head_has_its_own_network_on_the_same_hidden_state():
    model, ids = make_model(), torch.tensor([looping_text(12)[:12].tolist()])
    expected = plain_logits(model, ids)
    assert torch.allclose(model.base(input_ids=ids).logits, expected[0], atol=1e-5)
    heads = model.head_logits(model.hidden_states(ids))
    for slot in range(model.num_slots):
        assert torch.allclose(heads[..., slot, :], expected[slot + 1], atol=1e-5)


@pytest.mark.parametrize("strategy", ["bpd", "p_best", "tree"])
def test_decoding_gives_the_output_of_the_targets_own_generate(strategy):
    model = copy.deepcopy(model_of("trained"))
    prompt = looping_text(9)[:9].tolist()
    without = plain_greedy(model, prompt, 20)
    torch.manual_seed(0)
    attach_first_head(model.base, 24)
    torch.nn.init.normal_(model.output_embedding.network.outer.weight, std=1.0)
    expected = model.base.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=20, use_cache=True
    )[0, 9:].tolist()
    assert expected == plain_greedy(model, prompt, 20) != without
    config = DraftConfig(strategy, top_k=4)
    result = output_of(model, prompt, config, max_new_tokens=20)
    assert result.token_ids == expected
    # The same target with heads of the caller's: they are projected without head 1's network.
    given = generate(model.base, prompt, config, heads=model.heads, max_new_tokens=20)
    assert given.token_ids == expected
    assert given.stats.target_calls == result.stats.target_calls


@pytest.mark.parametrize("preset", ["kim2024", None])
def test_the_loss_of_the_preset_is_the_sum_of_all_heads_means_over_all_positions(preset, tmp_path):
    job = make_job(tmp_path, "joint", preset=preset, first_head=True)
    options = job.train_options(64, HEADS)
    model = make_model()
    ids = looping_text(300)
    with HeadTrainer(model, HeadText(ids), options) as trainer:
        trainer.report.precision = "fp32"
        sample = trainer.sample(0)
        trainer.add_gradients(sample)
        got = {name: weight.grad.clone() for name, weight in trainer.weights.items()}
        model.zero_grad()
        pieces = trainer.text.take(sample.starts, T + HEADS, torch.device("cpu"))
        logits = plain_logits(model, pieces[:, :T])
        loss = sum(  # kim2024, appendix C.1 with all lambdas 1
            F.cross_entropy(logits[h].flatten(0, 1), pieces[:, h + 1 : h + 1 + T].flatten())
            for h in range(HEADS)
        )
        loss.backward()
        # Our default begins with the target alone: its heads have no gradient at step 0.
        (network,) = (name for name in got if name.endswith("network.outer.weight"))
        assert got[network].any()
        assert got["heads.outer_weight"].any() == (preset is not None)
        if preset is not None:
            for name, weight in trainer.weights.items():
                assert torch.allclose(got[name], weight.grad, atol=1e-5), name


def test_the_preset_has_the_papers_numbers(tmp_path):
    job = make_job(tmp_path, "joint", preset="kim2024")
    job.train.clear()
    options = job.train_options(512, 9)
    # Appendix C.2: 200 K iterations of 2^20 tokens, sequences of 512 (section 5), no dropout,
    # a maximum rate of 1e-4 for all runs, lambda 1 (C.1); a network on every head (section 4).
    assert (options.steps, options.sequences_per_step) == (200_000, 2048)
    assert options.sequences_per_step * options.sequence_length == 2**20
    assert (options.matrix_lr, options.other_lr, options.base_rate) == (1e-4, 1e-4, 1.0)
    assert (options.head_ramp, options.head_fraction, options.head_weights) == (0.0, 1.0, None)
    assert (options.optimizer, options.dropout, job.has_first_head) == ("adamw", False, True)
    tuned = make_job(tmp_path, "finetune", preset="kim2024", first_head=False)
    tuned.train.clear()
    options = tuned.train_options(4096, 9)
    assert (options.steps, options.batch_size, options.sequence_length) == (100_000, 2, 2048)
    assert tuned.train_options(1024, 9).sequence_length == 1024  # 2048 is a maximum
    assert not tuned.has_first_head
    assert make_job(tmp_path, "joint", preset="kim2024").train_options(64, 9).steps == 12


@pytest.mark.parametrize("recipe", ["joint", "finetune"])
def test_training_writes_a_target_with_head_1s_network(recipe, tmp_path, capsys):
    job = make_job(tmp_path, recipe)
    sizes = ["--config", str(job.config)] if recipe == "joint" else ["--base", str(job.base)]
    command = [
        "heads", "train", str(job.inputs[0]), "--recipe", recipe, "--preset", "kim2024", *sizes,
        "-o", str(tmp_path / "out"), "--vocab-size", str(VOCAB), "--num-heads", str(HEADS),
        "--steps", "40", "--batch-size", "4", "--sequence-length", str(T), "--matrix-lr", "0.01",
        "--other-lr", "0.01", "--precision", "fp32", "--device", "cpu", "--log-every", "1",
    ]  # fmt: skip
    assert main(command) == 0, capsys.readouterr().err
    lines = [line["losses"] for line in read_losses(tmp_path / "out") if "losses" in line]
    assert set(lines[0]) == {str(head) for head in range(1, HEADS + 1)}
    assert all(lines[-1][head] < 0.9 * lines[0][head] for head in lines[0])
    model = BlockwiseLM.from_pretrained(tmp_path / "out")
    embedding = model.base.get_output_embeddings()
    assert isinstance(embedding, FirstHead)
    assert embedding.weight is model.base.get_input_embeddings().weight
    assert embedding.network.outer.weight.any()
    # Training continues from these files, network included; the folder is complete without heads.
    again = make_job(
        tmp_path, "finetune", base=tmp_path / "out", output=tmp_path / "more",
        train={"steps": 1, "matrix_lr": 0.0, "other_lr": 0.0},
    )  # fmt: skip
    train_heads(again)
    before, after = read_weights(tmp_path / "out"), read_weights(tmp_path / "more")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_files_without_a_network_have_none(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path / "m")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m")  # of transformers: no network
    assert not isinstance(loaded.get_output_embeddings(), FirstHead)
    assert isinstance(model.base.get_output_embeddings(), FirstHead)  # as it was
    plain = build_small_gpt(VOCAB, hidden_size=16, num_layers=1, num_heads=HEADS)
    plain.save_pretrained(tmp_path / "m")
    assert not list((tmp_path / "m").glob("first_head.*"))
    assert not isinstance(
        BlockwiseLM.from_pretrained(tmp_path / "m").base.get_output_embeddings(), FirstHead
    )


def test_without_this_distribution_the_core_says_what_to_install(tmp_path, monkeypatch):
    make_model().save_pretrained(tmp_path / "m")
    monkeypatch.setattr(extensions, "find_extensions", lambda _group: {})
    with pytest.raises(ImportError, match="part of a target of lattice-bpd-kim2024; pip install"):
        load_target(tmp_path / "m")


def test_refusals(tmp_path):
    for recipe in ("frozen", "distil"):
        with pytest.raises(ValueError, match="would change it; expected recipe joint or finetune"):
            train_heads(make_job(tmp_path, recipe, first_head=True))
    with pytest.raises(ValueError, match="preset kim2024 has no recipe distil"):
        train_heads(make_job(tmp_path, "distil", preset="kim2024"))
    with pytest.raises(TypeError, match=r"expected nn.Linear; load the target without"):
        FirstHead(torch.nn.Embedding(3, 4), None)
