"""`heads train`: each recipe end to end, what it learns, what it refuses."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from heads_training import HEADS, SMALL, T, make_job, read_losses, read_weights, write_base

from blockwise_models import VOCAB, looping_text
from lattice_bpd import FormatError
from lattice_bpd.cli import main
from lattice_bpd.decode import generate
from lattice_bpd.models import BlockwiseHeads, BlockwiseLM
from lattice_bpd_kim2024.heads.loop import read_log
from lattice_bpd_kim2024.heads.options import HeadText, TrainOptions
from lattice_bpd_kim2024.heads.recipes import RECIPES
from lattice_bpd_kim2024.heads.run import train_heads
from lattice_bpd_kim2024.heads.self_generated import generate_texts
from lattice_bpd_kim2024.heads.starting_model import build_untrained, load_base
from lattice_bpd_kim2024.heads.texts import hold_out
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
    found = generate(model, prompt, "bpd", max_new_tokens=6)
    assert found.token_ids == generate(model, prompt, "greedy", max_new_tokens=6).token_ids
    assert not (tmp_path / "out" / "training").exists()
    again = train_heads(make_job(tmp_path, recipe, train=train))
    assert again.was_finished
    assert again.losses == result.losses


@pytest.mark.parametrize("recipe", ["frozen", "distil"])
def test_a_frozen_target_is_written_as_it_was(recipe, tmp_path):
    train_heads(make_job(tmp_path, recipe))
    before, after = read_weights(tmp_path / "base"), read_weights(tmp_path / "out")
    assert all(torch.equal(before[name], after[name]) for name in before)
    torch.manual_seed(0)
    assert after["outer_weight"].any()  # which begins as zeros


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


def test_finetuning_moves_the_target_less_than_the_heads(tmp_path):
    train_heads(make_job(tmp_path, "finetune", train={"base_rate": 1e-3, "head_ramp": 0.0}))
    before, after = read_weights(tmp_path / "base"), read_weights(tmp_path / "out")
    moved = max(float((before[name] - after[name]).abs().max()) for name in before)
    assert 0.0 < moved < 1e-3
    assert float(after["outer_weight"].abs().max()) > 1e-2


def test_distilled_heads_learn_the_targets_own_text(tmp_path, monkeypatch):
    seen = {}
    take_step = HeadTrainer.take_step

    def spy(self):
        seen["text"] = self.text
        return take_step(self)

    monkeypatch.setattr(HeadTrainer, "take_step", spy)
    job = make_job(tmp_path, "distil", train={"steps": 1})
    train_heads(job)
    rows = seen["text"].token_ids.reshape(job.own_rows, T + HEADS)
    base = load_base(tmp_path / "base", full_precision=True)
    assert np.array_equal(rows, generate_texts(base, rows[:, : job.prompt_length], T + HEADS - 4))
    assert seen["text"].first_position == job.prompt_length - 1
    text = "".join(map(chr, looping_text(1200)))
    assert all("".join(map(chr, row[:4])) in text for row in rows)


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


def test_training_leaves_torchs_random_numbers_alone(tmp_path):
    job = make_job(tmp_path, "finetune", train={"steps": 2})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_heads(job)
    assert torch.equal(torch.rand(3), expected)


def test_held_out_text_is_the_end():
    ids = np.arange(100, dtype=np.int32)
    train, held = hold_out(ids, 0.02, 10)
    assert held.tolist() == list(range(90, 100))
    assert train.tolist() == list(range(90))
    assert hold_out(ids, 0.0, 10)[1] is None
    assert hold_out(ids, 0.5, 26)[1] is None
    assert len(hold_out(ids, 0.9, 20)[0]) >= 10


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


def test_text_is_tokenized_ended_and_passed_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "words.txt").write_text("<end>\na\nb\nc\n")
    (tmp_path / "text.jsonl").write_text('{"text": "a b c a"}\n' * 30)
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    seen = {}
    check = HeadText.check
    monkeypatch.setattr(
        HeadText, "check", lambda s, *more: (seen.setdefault("ids", s.token_ids), check(s, *more))
    )
    arguments = ["--recipe", "joint", "--tokenizer", str(tmp_path / "words.txt"), "--eos-id", "0"]
    line = command(tmp_path, *arguments, "--config", str(tmp_path / "small.json"))
    line[2] = str(tmp_path / "text.jsonl")
    assert main([*line, "--validation-share", "0", "--one-head"]) == 0, capsys.readouterr().err
    assert seen["ids"].tolist() == [1, 2, 3, 1, 0] * 30
    assert BlockwiseLM.from_pretrained(tmp_path / "out").vocab_size == 4


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
    for name, sizes in (("wide", (8, VOCAB)), ("words", (16, 3 * VOCAB))):
        heads = BlockwiseHeads(sizes[0], HEADS, vocab_size=sizes[1])
        heads.save_pretrained(tmp_path / name)
        more["heads"] = str(tmp_path / name)
        with pytest.raises(ValueError, match=r"use (heads trained|one with the target)"):
            train_heads(make_job(tmp_path, "frozen", **more))


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("magic", {}, "recipe is 'magic'; expected one of joint, frozen, finetune, distil"),
        ("frozen", {"base": None}, "recipe frozen needs a trained target"),
        ("joint", {"base": "x"}, "recipe joint starts from random weights"),
        ("frozen", {"config": "x"}, "recipe frozen takes base"),
        ("frozen", {"base": "nowhere"}, "nowhere: no such file or folder"),
        ("frozen", {"train": {"steps": 0}}, "steps 0"),
        ("frozen", {"train": {"accumulate": 0}}, "accumulate 0"),
        ("frozen", {"train": {"matrix_lr": -1.0}}, "matrix_lr is -1.0; expected 0 or more"),
        ("frozen", {"train": {"matrix_lr": float("nan")}}, "matrix_lr is nan"),
        (
            "frozen",
            {"train": {"head_ramp": 2.0}},
            "head_ramp is 2.0; expected 0 or more and at most 1",
        ),
        ("frozen", {"train": {"sequence_length": 40}}, "sequence_length is 40, the target has"),
        ("frozen", {"train": {"head_weights": [1.0]}}, r"head_weights is \[1.0\]; expected 3"),
        ("distil", {"train": {"sequence_length": 31}}, r"sequence_length is 31; expected 4 .* 30"),
        ("frozen", {"num_heads": 1}, "num_heads is 1; expected 2 or more"),
        ("frozen", {"train": {"max_seconds": 9.0}}, "train has 'max_seconds'; expected accumulate"),
        ("frozen", {"log_every": 0}, "log_every is 0; expected 1 or more"),
        ("frozen", {"validation_share": 1.0}, "validation_share is 1.0; expected 0 <= share < 1"),
        ("frozen", {"process_timeout": 0.0}, "process_timeout is 0.0; expected seconds above 0"),
        ("frozen", {"device": "tpu"}, "device is 'tpu'; expected auto, cpu or cuda"),
        ("frozen", {"resume": True}, "no run to resume; leave --resume out"),
        ("frozen", {"resume": True, "restart": True}, "resume and restart are mutually exclusive"),
        ("frozen", {"corpus": {"vocab_size": VOCAB, "eos_id": VOCAB}}, "eos_id is 48; expected 0"),
        ("frozen", {"inputs": ["nothing.txt"]}, "nothing.txt: no such file"),
    ],
)
def test_bad_jobs_are_refused_before_anything_is_written(recipe, options, message, tmp_path):
    with pytest.raises((ValueError, OSError), match=message):
        train_heads(make_job(tmp_path, recipe, **options))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("length", "options", "message"),
    [
        (0, {}, "no token ids in the file"),
        (10, {}, r"shape \(10,\); expected one sequence of 19 or more"),
        (3, {"recipe": "distil"}, "self-generated text: token_ids has shape"),
    ],
)
def test_text_that_is_too_short_is_refused(length, options, message, tmp_path):
    job = make_job(tmp_path, options.get("recipe", "frozen"))
    np.save(tmp_path / "text-0.npy", looping_text(1200)[:length])
    with pytest.raises(ValueError, match=message):
        train_heads(job)


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
        ("[1]", "a JSON list; expected an object"),
        ("{", "not JSON"),
        ('{"hidden_size": 0}', "no causal LM can be built"),
        ('{"hidden_size": 10, "num_attention_heads": 3}', "no causal LM can be built"),
        ('{"layers": 3}', "layers is 3"),
        ('{"model_type": "nonsense"}', "no causal LM can be built"),
        ('{"model_type": "gpt2", "n_embd": "x"}', "no causal LM can be built"),
        ('{"vocab_size": 3}', "vocab_size is 3, the text has 48 token ids"),
    ],
)
def test_bad_configurations_are_refused(config, message, tmp_path):
    job = make_job(tmp_path, "joint")
    (tmp_path / "small.json").write_text(config)
    with pytest.raises(ValueError, match=message):
        build_untrained(job, VOCAB, 0)


def test_a_transformers_configuration_is_built(tmp_path):
    job = make_job(tmp_path, "joint")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    (tmp_path / "small.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    model = build_untrained(job, VOCAB, 0)
    assert (type(model.base).__name__, model.vocab_size) == ("GPT2LMHeadModel", VOCAB)


def test_damaged_logs_are_refused(tmp_path):
    (tmp_path / "l.jsonl").write_text('{"step": 1}\nnonsense\n')
    with pytest.raises(FormatError, match="line 2: not a line of a loss log"):
        read_log(tmp_path / "l.jsonl")
