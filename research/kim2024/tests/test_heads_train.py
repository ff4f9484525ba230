"""`heads train`: each recipe end to end, what it learns, what it refuses."""

from __future__ import annotations

import struct

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from heads_training import HEADS, T, make_job, read_losses, read_weights, write_base

from blockwise_models import VOCAB, looping_text, output_of
from lattice_bpd.cli import main
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.loop import read_log
from lattice_bpd_kim2024.heads.options import HeadText, TrainOptions
from lattice_bpd_kim2024.heads.recipes import RECIPES
from lattice_bpd_kim2024.heads.run import train_heads
from lattice_bpd_kim2024.heads.starting_model import build_untrained, load_base
from lattice_bpd_kim2024.heads.trainer import HeadTrainer
from lattice_bpd_kim2024.llama2c import Llama2cSizes


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_recipe_lowers_the_losses_and_writes_what_loads(recipe, tmp_path):
    # The target is untrained: let finetune move it as joint does.
    train = {"steps": 60, "head_fraction": 1.0, "matrix_lr": 0.05, "base_rate": 1.0}
    result = train_heads(make_job(tmp_path, recipe, train=train))
    way = RECIPES[recipe]
    lines = read_log(tmp_path / "out" / "losses.jsonl")
    first, last = lines[0]["losses"], [line for line in lines if "losses" in line][-1]["losses"]
    heads = range(1 if way.train_base else 2, HEADS + 1)
    assert [int(head) for head in first] == list(heads)
    for head in first:
        assert last[head] < 0.9 * first[head], (recipe, head)
    assert (result.steps, result.precision, result.was_finished) == (60, "fp32", False)
    assert set(result.validation_losses) == set(range(1, HEADS + 1))
    assert all(0.0 <= share <= 1.0 for share in result.accuracies.values())
    model = BlockwiseLM.from_pretrained(tmp_path / "out")
    assert model.num_heads == HEADS
    prompt = looping_text(9).tolist()
    found = output_of(model, prompt, "bpd", max_new_tokens=6)
    assert found.token_ids == output_of(model, prompt, "greedy", max_new_tokens=6).token_ids
    assert not (tmp_path / "out" / "training").exists()
    again = train_heads(make_job(tmp_path, recipe, train=train))
    assert again.was_finished
    assert again.losses == result.losses


def test_a_llama2c_file_is_a_base(tmp_path):
    sizes = Llama2cSizes(16, 32, 1, 2, 2, VOCAB, 32, tied=True)
    rng = np.random.default_rng(0)
    numbers = [rng.normal(0.0, 0.3, shape).astype("<f4") for shape in sizes.shapes.values()]
    header = struct.pack("<7i", *sizes[:-1])
    (tmp_path / "m.bin").write_bytes(header + b"".join(part.tobytes() for part in numbers))
    train_heads(make_job(tmp_path, "distil", base=tmp_path / "m.bin"))
    model = BlockwiseLM.from_pretrained(tmp_path / "out")
    assert (type(model.base).__name__, model.num_heads) == ("LlamaForCausalLM", HEADS)


def test_a_frozen_target_of_half_precision_stays_so_and_its_heads_are_whole(tmp_path):
    make_job(tmp_path, "frozen")
    half = load_base(tmp_path / "base", full_precision=True).to(torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    train_heads(make_job(tmp_path, "frozen", base=tmp_path / "half"))
    found = read_weights(tmp_path / "out")
    assert found["outer_weight"].dtype == torch.float32
    assert found["transformer.wte.weight"].dtype == torch.bfloat16
    before = read_weights(tmp_path / "half")
    assert all(torch.equal(before[name], found[name]) for name in before)


def follow(folder, text, steps=3, **options):
    """Losses of some steps, the gradient of the first, and the weights in the end."""
    settings = {"batch_size": 4, "sequence_length": T, "precision": "fp32", "warmup": 1, **options}
    torch.manual_seed(3)
    model = BlockwiseLM(load_base(folder, full_precision=True), HEADS)
    with HeadTrainer(model, HeadText(text), TrainOptions(steps=steps, **settings)) as trainer:
        trainer.choose_precision()
        trainer.add_gradients(trainer.sample(0))
        weights = trainer.weights.values()
        gradient = torch.cat([(w.grad if w.grad is not None else 0 * w).flatten() for w in weights])
        model.zero_grad()
        losses = [trainer.take_step() for _ in range(steps)]
    return losses, gradient, torch.cat([weight.detach().flatten() for weight in weights])


@pytest.mark.parametrize("options", [{"head_ramp": 0.0}, {"train_base": False}, {"one_head": True}])
def test_accumulated_steps_are_those_of_the_larger_batch(options, tmp_path):
    base, text = write_base(tmp_path / "base"), looping_text(500)
    whole = follow(base, text, batch_size=8, **options)
    found = follow(base, text, batch_size=2, accumulate=4, **options)
    for one, other in zip(found[0], whole[0], strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    torch.testing.assert_close(found[1], whole[1], rtol=1e-4, atol=1e-6)
    # Muon rounds to bfloat16 inside, so steps of 0.02 and 0.03 are alike to a tenth at the worst.
    torch.testing.assert_close(found[2], whole[2], rtol=0.0, atol=5e-3)
    other = follow(base, text, batch_size=8, **options, seed=1)
    assert float((other[2] - whole[2]).abs().max()) > 2e-2


def test_one_head_a_step_is_an_unbiased_estimate(tmp_path):
    """The mean gradient over the choices of the head is that of all heads."""
    base, text = write_base(tmp_path / "base"), looping_text(500)
    model = BlockwiseLM(load_base(base, full_precision=True), HEADS)
    gradients = []
    for one_head in (False, True):
        options = TrainOptions(
            steps=9, batch_size=2, sequence_length=T, head_ramp=0.0, one_head=one_head
        )
        with HeadTrainer(model, HeadText(text), options) as trainer:
            draw = trainer.sample(0)._replace(heads=tuple(range(1, HEADS + 1)))
            choices = [draw] if not one_head else [draw._replace(heads=(h,)) for h in draw.heads]
            for choice in choices:
                trainer.add_gradients(choice)
            gradients.append(model.base.transformer.h[0].mlp.c_fc.weight.grad / len(choices))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def command(folder, *more):
    files = [str(folder / "text-0.npy"), "-o", str(folder / "out"), "--device", "cpu"]
    sizes = ["--steps", "4", "--batch-size", "2", "--sequence-length", str(T), "--num-heads", "3"]
    return ["heads", "train", *files, *sizes, "--precision", "fp32", *more]


def test_the_command_trains_and_prints_a_table(tmp_path, capsys):
    make_job(tmp_path, "frozen")  # writes the files
    base = ["--recipe", "frozen", "--base", str(tmp_path / "base")]
    assert main(command(tmp_path, *base, "--heads-only", "--validate-every", "2")) == 0
    printed = capsys.readouterr().out
    assert "head  training loss  validation loss  accuracy" in printed
    assert printed.count(" %\n") == 3
    heads = BlockwiseHeads.from_pretrained(tmp_path / "out")
    assert heads.num_heads == 3
    assert heads.trained_on.name == "base"
    assert not (tmp_path / "out" / "model.safetensors").exists()
    lines = read_losses(tmp_path / "out")
    assert [line["step"] for line in lines if "validation" in line] == [2, 4]
    assert (tmp_path / "out" / "losses.svg").read_text().startswith("<svg")


def test_heads_go_on_where_those_of_the_base_are(tmp_path):
    train_heads(make_job(tmp_path, "frozen"))
    first = read_weights(tmp_path / "out")
    more = {"base": tmp_path / "out", "output": tmp_path / "more", "num_heads": None}
    options = {"steps": 1, "matrix_lr": 0.0, "other_lr": 0.0}
    train_heads(make_job(tmp_path, "frozen", **more, train=options))
    second = read_weights(tmp_path / "more")
    assert all(torch.equal(first[name], second[name]) for name in first)
    more["output"] = tmp_path / "new"
    train_heads(make_job(tmp_path, "frozen", **more, heads="new", train=options))
    assert not read_weights(tmp_path / "new")["outer_weight"].any()


def test_heads_of_another_base_are_refused(tmp_path):
    train_heads(make_job(tmp_path, "frozen", heads_only=True))
    other = write_base(tmp_path / "other", seed=1)
    more = {"heads": str(tmp_path / "out"), "output": tmp_path / "more"}
    with pytest.raises(ValueError, match=r"heads were trained on another base than .*other"):
        train_heads(make_job(tmp_path, "frozen", base=other, **more))
    with pytest.raises(ValueError, match="heads have num_heads 3; expected 5"):
        train_heads(make_job(tmp_path, "frozen", **{**more, "num_heads": 5}))


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("magic", {}, "recipe is 'magic'; expected one of joint, frozen, finetune, distil"),
        ("frozen", {"base": None}, "recipe frozen needs a trained target"),
        ("joint", {"base": "x"}, "recipe joint starts from random weights"),
        ("frozen", {"base": "nowhere"}, "nowhere: no such file or folder"),
        ("frozen", {"train": {"steps": 0}}, "steps 0"),
        ("frozen", {"train": {"matrix_lr": -1.0}}, "matrix_lr is -1.0; expected 0 or more"),
        ("frozen", {"train": {"sequence_length": 40}}, "sequence_length is 40, the target has"),
        ("frozen", {"train": {"head_weights": [1.0]}}, r"head_weights is \[1.0\]; expected 3"),
        ("frozen", {"num_heads": 1}, "num_heads is 1; expected 2 or more"),
        ("frozen", {"train": {"max_seconds": 9.0}}, "train has 'max_seconds'; expected accumulate"),
        ("frozen", {"validation_share": 1.0}, "validation_share is 1.0; expected 0 <= share < 1"),
        ("frozen", {"resume": True}, "no run to resume; leave --resume out"),
        ("frozen", {"corpus": {"vocab_size": VOCAB, "eos_id": VOCAB}}, "eos_id is 48; expected 0"),
    ],
)
def test_bad_jobs_are_refused_before_anything_is_written(recipe, options, message, tmp_path):
    with pytest.raises((ValueError, OSError), match=message):
        train_heads(make_job(tmp_path, recipe, **options))
    assert not (tmp_path / "out").exists()


def test_divergence_is_said_and_keeps_the_checkpoint(tmp_path):
    job = make_job(tmp_path, "joint", train={"other_lr": 1e30, "warmup": 0}, checkpoint_every=1)
    with pytest.raises(
        ValueError, match=r"heads train: losses at step .* lower the learning rates"
    ):
        train_heads(job)
    assert (tmp_path / "out" / "training" / "checkpoint").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not JSON"),
        ('{"hidden_size": 0}', "no causal LM can be built"),
        ('{"model_type": "nonsense"}', "no causal LM can be built"),
        ('{"vocab_size": 3}', "vocab_size is 3, the text has 48 token ids"),
    ],
)
def test_bad_configurations_are_refused(config, message, tmp_path):
    job = make_job(tmp_path, "joint")
    (tmp_path / "small.json").write_text(config)
    with pytest.raises(ValueError, match=message):
        build_untrained(job, VOCAB, 0)
