"""`lattice-bpd tune`, drafter.json, parity with decoding."""

from __future__ import annotations

import copy
import json
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from blockwise_models import VOCAB, looping_text, output_of, random_model, trained_model
from lattice_bpd import FormatError, NGramLM
from lattice_bpd.cli import main
from lattice_bpd.decode import TreeDrafter, load_drafter
from lattice_bpd.decode.drafter_file import DrafterFile, read_drafter_file
from lattice_bpd.decode.drafters import NeuralScorer
from lattice_bpd.decode.drafters.chain import ChainDrafter
from lattice_bpd.decode.drafters.scorer import ScorerDrafter
from lattice_bpd.draft import MixtureScorer
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.evaluate import record
from lattice_bpd_kim2024.lab.drafter_search import (
    Choice,
    DrafterSearch,
    SearchSpace,
)
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_vllm.files import load_parts
from lattice_bpd_vllm.options import DrafterOptions

NEW_TOKENS = 16
FLAT = {0: 1.0, 200: 1.0}  # drafts for nothing
STEEP = {0: 1.0, 1: 100.0}  # a draft token costs more than 99 calls


@pytest.fixture(scope="module")
def model() -> BlockwiseLM:
    """The trained model with heads that are often wrong."""
    noisy = copy.deepcopy(trained_model())
    weights = noisy.heads.outer_weight
    noise = torch.randn(weights.shape, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        weights += 3.0 * weights.std() * noise
    return noisy


@pytest.fixture(scope="module")
def lm() -> NGramLM:
    return NGramLM.train([looping_text(2000, seed=3)], 3, vocab_size=VOCAB, smoothing="witten_bell")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    ids = looping_text(600, seed=9).tolist()
    return [ids[40 * n : 40 * n + 8] for n in range(9)]


@pytest.fixture(scope="module")
def recording(model, prompts):
    outputs = [
        result.token_ids
        for result in output_of(model, prompts, "greedy", max_new_tokens=NEW_TOKENS)
    ]
    return record(model, prompts, outputs, top_k=8)


def file_of(**options) -> DrafterFile:
    about = {"file": "three.lm", "order": 3, "vocab_size": VOCAB}
    config = DraftConfig(**{"strategy": "tree", "top_k": 8, "max_nodes": 9, **options})
    return DrafterFile(config, VOCAB, 4, about, {"note": 1})


def test_tune_writes_files_that_come_back(tmp_path, lm):
    path = tmp_path / "drafter.json"
    file = file_of()
    file.save(path)
    assert read_drafter_file(path) == file
    lm.save(tmp_path / "three.lm")
    drafter = load_drafter(path)  # finds the LM beside it
    assert isinstance(drafter, TreeDrafter)
    assert drafter.lm is not None
    assert drafter.config == file.config


@pytest.mark.parametrize("strategy", ["bpd", "p_best", "tree"])
@pytest.mark.parametrize(("vocab_size", "num_slots"), [(VOCAB + 1, 4), (VOCAB, 3)])
def test_tune_files_without_lm_check_the_model(
    tmp_path, model, prompts, strategy, vocab_size, num_slots
):
    path = tmp_path / "drafter.json"
    DrafterFile(DraftConfig(strategy, top_k=8), vocab_size, num_slots).save(path)
    has = f"a vocabulary of {VOCAB}" if vocab_size != VOCAB else "heads of 4 slots"
    found = vocab_size if vocab_size != VOCAB else num_slots
    message = rf"the target has {has}, .*drafter\.json is for {found}; make a drafter for this"
    with pytest.raises(ValueError, match=rf"generate: {message}"):
        output_of(model, prompts[0], drafter=load_drafter(path), max_new_tokens=NEW_TOKENS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown fields colour; expected strategy, top_k"),
        ({"strategy": "trie"}, "strategy is 'trie'; did you mean 'tree'? expected one of greedy"),
        ({"strategy": "draft_model"}, "strategy is 'draft_model'; expected one of greedy, bpd"),
        ({"top_k": 0}, "top_k is 0; expected 1 or more"),
        ({"temperature": 0}, "temperature is 0; expected a finite number above 0"),
        ({"lm": "three.lm"}, "lm is 'three.lm'; expected null or an object"),
    ],
)
def test_tune_files_say_what_is_wrong(tmp_path, change, message):
    path = tmp_path / "drafter.json"
    file_of().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FormatError, match="make one with lattice-bpd build") as caught:
        load_drafter(path)
    assert message in str(caught.value)


def test_tune_files_without_a_field_json_or_lm(tmp_path):
    path = tmp_path / "drafter.json"
    file_of().save(path)
    with pytest.raises(ValueError, match=r"n-gram LM and three\.lm is not there; give lm="):
        load_drafter(path)
    other = NGramLM.train([[0, 1, 2]], 2, vocab_size=5, smoothing="witten_bell")
    with pytest.raises(ValueError, match=r"the LM has a vocabulary of 5, the target one of 48"):
        load_drafter(path, other)
    for text, message in (("{}", "format"), ("[1]", r"not a drafter\.json"), ("{", "not a draf")):
        path.write_text(text)
        with pytest.raises(FormatError, match=message):
            load_drafter(path)


@pytest.fixture
def mixture_path(tmp_path, lm):
    """drafter.json of a mixture, with the parts beside it."""
    trained_model().base.save_pretrained(tmp_path / "rescorer")
    lm.save(tmp_path / "three.lm")
    file = DrafterFile(
        DraftConfig("neural", top_k=8, alpha=0.75), VOCAB, 4,
        {"file": "/nowhere/rescorer", "vocab_size": VOCAB},
        ngram_lm={"file": "/nowhere/three.lm", "order": 3, "vocab_size": VOCAB, "weight": 0.5},
    )  # fmt: skip
    file.save(tmp_path / "drafter.json")
    assert read_drafter_file(tmp_path / "drafter.json") == file
    return tmp_path / "drafter.json"


def test_tune_files_hold_mixtures(mixture_path, model, lm, prompts, recording):
    drafter = load_drafter(mixture_path)
    assert isinstance(drafter, ScorerDrafter)
    assert isinstance(drafter.scorer, MixtureScorer)
    assert drafter.scorer.weights == [1.0, 0.5]
    # the search's choice, and what it predicts
    own = {"own": NeuralScorer(trained_model().base)}
    choice = Choice("mixture", DraftConfig(top_k=8, alpha=0.75), "lm", "own", 0.5)
    search = DrafterSearch({"lm": lm}, FLAT, scorers=own)
    (replayed,) = search._replay(recording.read_with(search._scorers["mixture"]), [choice])
    ready = MixtureScorer([(own["own"], 1.0), (lm, 0.5)])
    for number, prompt in enumerate(prompts):
        plain = model.base.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS
        )[0, len(prompt) :]  # fmt: skip
        for used in (drafter, load_drafter(mixture_path, ready)):
            live = output_of(model, prompt, drafter=used, max_new_tokens=NEW_TOKENS)
            assert live.token_ids == plain.tolist()
            assert live.stats.target_calls == replayed.calls[number]
            assert live.stats.draft_failures == {}


def test_tune_files_of_mixtures_say_what_is_missing(mixture_path, model):
    folder = mixture_path.parent
    hint = "lm=MixtureScorer([(NeuralScorer(model), 1), (NGramLM.load(path), 0.5)])"
    for name, kind in (("three.lm", "an n-gram LM"), ("rescorer", "a rescorer")):
        (folder / name).rename(folder / "gone")
        message = f"needs {kind} and /nowhere/{name} is not there; give {hint}"
        with pytest.raises(ValueError, match=re.escape(message)):
            load_drafter(mixture_path)
        (folder / "gone").rename(folder / name)
    model.save_pretrained(folder)  # the plug-in of vLLM has no rescorers
    with pytest.raises(ValueError, match="strategy 'neural', which this drafter does not have"):
        load_parts(DrafterOptions(str(folder)))


def test_tune_predicts_the_sum_of_calls(recording):
    search = DrafterSearch({}, {0: 2.0, 4: 3.0, 8: 5.0})
    bpd = recording.replay(Choice("bpd", DraftConfig()).point.strategy, Rescorers(), DraftConfig())
    # 4 slots: 4 draft tokens a call but near the end, where the curve is linear below 4
    expected = [2.0 + sum(2.0 + n / 4 for n in bpd.nodes[bpd.texts == t]) for t in range(9)]
    assert search.milliseconds(bpd).tolist() == pytest.approx(expected)
    greedy = Choice("greedy", DraftConfig()).point
    alone = recording.replay(greedy.strategy, Rescorers(), greedy.options)
    assert search.milliseconds(alone).tolist() == [2.0 * NEW_TOKENS] * 9


def test_tune_drafts_much_where_calls_are_free_and_nothing_where_they_are_expensive(lm, recording):
    space = SearchSpace(top_k=(4, 8), num_drafts=(1, 4), max_nodes=(4, 16), alpha=(0.2, 0.6),
                  temperature=(1.0,))  # fmt: skip
    free = DrafterSearch({"lm": lm}, FLAT, space).run(recording)
    assert free.choice.name in ("tree", "tree_0gram", "p_best_ngram", "p_best_0gram")
    assert free.milliseconds == pytest.approx(1.0 / free.block_efficiency)
    assert free.over_greedy.gain.low > 0.0
    assert free.texts == (6, 3)
    expensive = DrafterSearch({"lm": lm}, STEEP, space).run(recording)
    assert expensive.choice.name == "greedy"
    assert expensive.over_greedy.gain.value == 0.0
    with pytest.raises(ValueError, match="1 texts; expected two or more"):
        DrafterSearch({}, FLAT, space).run(recording.select([0]))


SINGLE = {0: 1.0, 4: 1.0, 5: 100.0}  # one draft of four tokens for nothing, more is expensive


def test_tune_chooses_a_rescorer_unless_it_takes_too_long(recording):
    """The target itself as the rescorer: the best single draft, at a price."""
    scorers = {
        "bad": NeuralScorer(random_model("gpt2").base),
        "own": NeuralScorer(trained_model().base),
    }
    space = SearchSpace(top_k=(8,), num_drafts=(1,), max_nodes=(4,), temperature=(1.0,))
    cheap = DrafterSearch(
        {}, SINGLE, space, scorers=scorers, rescoring={"bad": 0.01, "own": 0.01}
    ).run(recording)  # fmt: skip
    assert (cheap.choice.name, cheap.choice.scorer) == ("neural", "own")
    assert cheap.choice.options.alpha in space.scorer_alpha
    slow = DrafterSearch(
        {}, SINGLE, space, scorers=scorers, rescoring={"bad": 9.0, "own": 9.0}
    ).run(recording)  # fmt: skip
    assert slow.choice.scorer == ""


def test_tune_by_command_line(tmp_path, model, lm, prompts, capsys, monkeypatch):
    pytest.importorskip("pyarrow")
    pytest.importorskip("rich")
    from lattice_bpd_kim2024.record.write import Prompt, RecordOptions, write_record

    run = tmp_path / "run"
    write_record(run, model, [Prompt(ids) for ids in prompts],
                 RecordOptions(top_k=8, max_new_tokens=NEW_TOKENS), task="loops")  # fmt: skip
    lm.save(tmp_path / "three.lm")
    (tmp_path / "cost.json").write_text('{"0": 1.0, "72": 1.5}')
    arguments = ["tune", str(run), "--cost", str(tmp_path / "cost.json")]
    assert main([*arguments, "--lm", str(tmp_path / "three.lm")]) == 0
    assert "on 3 other texts: " in capsys.readouterr().out
    drafter = load_drafter(run / "drafter.json")
    greedy = output_of(model, prompts[1], "greedy", max_new_tokens=NEW_TOKENS)
    output = output_of(model, prompts[1], drafter=drafter, max_new_tokens=NEW_TOKENS)
    assert output.token_ids == greedy.token_ids
    assert output.stats.target_calls < greedy.stats.target_calls
    trained_model().base.save_pretrained(tmp_path / "rescorer")
    (tmp_path / "single.json").write_text(json.dumps({"0": 1e6, "4": 1e6, "5": 1e9}))
    neural = ["tune", str(run), "--cost", str(tmp_path / "single.json"), "--rescorer",
              f"own={tmp_path / 'rescorer'}", "-o", str(tmp_path / "neural.json")]  # fmt: skip
    assert main(neural) == 0
    assert "best: neural, own, top_k 8, alpha" in capsys.readouterr().out
    # a mixture, in a folder that holds both of its parts
    mixture = Choice("mixture", DraftConfig(top_k=8), "three", "own", 0.25)
    with monkeypatch.context() as patch:
        patch.setattr(DrafterSearch, "_search_strategies", lambda *_: mixture)
        for _ in range(2):  # the second run replaces the files of the first
            assert main([*neural[:-2], "--lm", str(tmp_path / "three.lm"), "-o",
                         str(tmp_path / "new" / "mixed")]) == 0  # fmt: skip
            assert "best: mixture, LM three, own, LM weight 0.25, " in capsys.readouterr().out
    mixed = tmp_path / "new" / "mixed"
    assert {path.name for path in mixed.iterdir()} == {"drafter.json", "rescorer", "three.lm"}
    file = read_drafter_file(mixed / "drafter.json")
    assert file.lm == {"name": "own", "file": "rescorer", "vocab_size": VOCAB}
    assert file.ngram_lm == {
        "name": "three", "file": "three.lm", "order": 3, "vocab_size": VOCAB, "weight": 0.25,
    }  # fmt: skip
    for path in (tmp_path / "neural.json", mixed / "drafter.json"):
        output = output_of(model, prompts[1], drafter=load_drafter(path), max_new_tokens=NEW_TOKENS)
        assert output.token_ids == greedy.token_ids
        assert output.stats.draft_failures == {}
    # a folder for an engine that verifies chains, with all that it needs
    folder = tmp_path / "served"
    model.save_pretrained(tmp_path / "model")
    measured = ["tune", str(run), "--measure", str(tmp_path / "model"), "--chain-only"]
    with monkeypatch.context() as patch:
        patch.setattr("lattice_bpd_kim2024.record.heads.time_calls", lambda *_, **__: FLAT)
        three = str(tmp_path / "three.lm")
        assert main([*measured, "--lm", three, "-o", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {
        "drafter.json", "three.lm", "blockwise_heads.json", "blockwise_heads.safetensors",
    }  # fmt: skip
    file = read_drafter_file(folder / "drafter.json")
    assert (file.config.strategy, file.lm["file"]) == ("chain", "three.lm")
    assert isinstance(load_drafter(folder), ChainDrafter)
    parts = load_parts(DrafterOptions(str(folder)))  # the plug-in of vLLM reads it as it is
    assert (parts.draft, parts.vocab_size, parts.config) == ("chain", VOCAB, file.config)
    assert torch.equal(parts.heads.outer_weight, model.heads.outer_weight)
    assert [lm.order for lm in parts.lms] == [file.lm["order"]] == [3]
    NGramLM.train([[0, 1, 2]], 2, vocab_size=5, smoothing="witten_bell").save(tmp_path / "other.lm")
    assert main([*arguments, "--lm", str(tmp_path / "other.lm")]) == 2
    assert "--lm other: the LM has a vocabulary of 5, the target one" in capsys.readouterr().err
    assert main([*arguments, "-o", str(tmp_path / "three.lm")]) == 2
    assert "three.lm (Not a directory)" in capsys.readouterr().err


def test_tune_measures_what_was_recorded(tmp_path, model, prompts, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    pytest.importorskip("rich")
    from lattice_bpd_kim2024.record.write import Prompt, RecordOptions, write_record

    model.save_pretrained(tmp_path / "model")
    trained_model().save_pretrained(tmp_path / "other")
    write_record(
        tmp_path / "run", model, [Prompt(ids) for ids in prompts[:6]],
        RecordOptions(top_k=8, max_new_tokens=8), model_name="my-model",
    )  # fmt: skip
    monkeypatch.setattr("lattice_bpd_kim2024.record.heads.time_calls", lambda *_, **__: STEEP)
    served = tmp_path / "served"
    command = ["tune", str(tmp_path / "run"), "--measure", str(tmp_path / "model"), "--chain-only",
               "-o", str(served)]  # fmt: skip
    assert main([*command, "--heads", str(tmp_path / "other")]) == 2
    assert re.search(
        r"tune: \S+model with the heads of \S+other \(4 slots, fingerprint \w{16}\) is not what "
        r"\S+run was recorded with \(my-model, 4 slots, fingerprint \w{16}\); give the recorded ",
        capsys.readouterr().err,
    )
    assert not served.exists()
    assert main(command) == 0
    assert "serve without the plug-in" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match="greedy"):
        load_parts(DrafterOptions(str(served)))
