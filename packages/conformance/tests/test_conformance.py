"""The checker finds what is planted: wrong tokens, raw errors, late refusals, ties."""

from __future__ import annotations

import copy
import json
import re
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
)

from lattice_bpd.cli import main
from lattice_bpd.draft.config import STRATEGIES
from lattice_bpd.verify import CausalLMTarget
from lattice_bpd_conformance.cases import (
    Case,
    list_cases,
    list_quick_cases,
    random_prompts,
)
from lattice_bpd_conformance.check import Checker, InformedHeads
from tiny_models import VOCAB, make_tiny_model
from tiny_models import main as write_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = [Case("greedy"), Case("bpd", 3, "rows"), Case("tree", 3, "tree")]


@pytest.fixture(scope="module")
def checker():
    return Checker(make_tiny_model(LlamaForCausalLM, LlamaConfig()), random_prompts(VOCAB))


def test_a_right_model_is_equal(checker):
    for verdict in checker.run([*CASES, *list_quick_cases()]):
        assert verdict.outcome == "equal", verdict


@pytest.fixture
def wrong_call(monkeypatch):
    """Lets a test alter the logits of the calls after the prompt, or raise in them."""

    def plant(change):
        right = CausalLMTarget.__call__

        def call(self, *arguments, **named):
            output = right(self, *arguments, **named)
            return output._replace(logits=change(output.logits))

        monkeypatch.setattr(CausalLMTarget, "__call__", call)

    return plant


def test_a_wrong_call_is_different(checker, wrong_call):
    wrong_call(lambda logits: logits.roll(1, dims=-1))
    for verdict in checker.run(CASES):
        assert verdict.outcome == "different", verdict
        assert verdict.failed
        assert verdict.position == 1  # the prompt's call is right
        assert verdict.margin > verdict.bound > 0


def test_other_logits_are_different_with_certificates(checker, wrong_call):
    certain = Checker(checker.model, checker.reference.prompts, certificates=True)
    assert {verdict.outcome for verdict in certain.run(CASES)} == {"equal"}
    wrong_call(lambda logits: logits * 1.001)  # the same tokens
    assert {verdict.outcome for verdict in checker.run(CASES)} == {"equal"}
    for verdict in certain.run(CASES):
        assert verdict.outcome == "different"
        assert "logits differ by up to" in verdict.detail
        assert verdict.agreeing == verdict.positions > 0
    penalized = copy.deepcopy(checker.model)  # its own settings allow no certificate
    penalized.generation_config.repetition_penalty = 1.2
    certain = Checker(penalized, checker.reference.prompts, certificates=True)
    assert certain.check(CASES[0]).outcome == "equal"


def test_a_foreign_exception_is_an_error(checker, wrong_call):
    def fail(logits):
        return logits[10**6]

    wrong_call(fail)
    verdict = checker.check(CASES[0])
    assert verdict.outcome == "error"
    assert "IndexError" in verdict.detail
    assert "test_conformance.py" in verdict.detail


def test_a_refusal_is_ours_and_comes_first(checker, monkeypatch):
    refused = checker.check(Case("no such strategy"))
    assert (refused.outcome, refused.failed) == ("refused", False)
    assert "no such strategy" in refused.detail

    right = InformedHeads.read_states

    def refuse_late(self, states):
        right(self, states)
        list_cases(["no such strategy"])  # the same error of the library, but a token is decoded

    monkeypatch.setattr(InformedHeads, "read_states", refuse_late)
    late = checker.check(CASES[1])
    assert (late.outcome, late.failed) == ("error", True)
    assert "after decoding began" in late.detail


def continue_alone(checker, prompt, count):
    ids = torch.tensor([prompt])
    return checker.model.generate(ids, do_sample=False, max_new_tokens=count)[0].tolist()


def test_ties_are_within_the_noise_at_every_position():
    model = make_tiny_model(LlamaForCausalLM, LlamaConfig())
    with torch.no_grad():  # tokens 2n and 2n + 1 always have the same logit
        model.lm_head.weight[1::2] = model.lm_head.weight[::2]
    checker = Checker(model, random_prompts(VOCAB))
    texts = checker.reference.texts()[:1]
    prompt, right = texts[0].prompt, texts[0].output
    verdict = checker._compare(CASES[0], texts, [right])
    assert (verdict.outcome, verdict.positions, verdict.agreeing) == ("equal", 24, 24)
    start = [*prompt, *right[:5], right[5] ^ 1]
    twin = continue_alone(checker, start, 18)[len(prompt) :]  # another text from there on
    verdict = checker._compare(CASES[0], texts, [twin])
    assert (verdict.outcome, verdict.prompt, verdict.position) == ("tie", 0, 5)
    assert (verdict.positions, verdict.agreeing) == (24, 23)
    assert verdict.detail == f"token {twin[5]}, expected {right[5]}"
    later = [*twin[:20], (twin[20] + 2) % VOCAB, *twin[21:]]  # after a tie, too
    verdict = checker._compare(CASES[0], texts, [later])
    assert (verdict.outcome, verdict.position) == ("different", 20)
    wrong = [*right[:5], (right[5] + 2) % VOCAB, *right[6:]]
    verdict = checker._compare(CASES[0], texts, [wrong])
    assert (verdict.outcome, verdict.position) == ("different", 5)
    assert verdict.margin > verdict.bound > 0
    short = checker._compare(CASES[0], texts, [right[:-1]])
    assert (short.outcome, short.position) == ("different", len(right) - 1)
    assert checker._compare(CASES[0], texts, [twin[:-1]]).outcome == "different"


def test_texts_that_continue_after_their_end_are_different(checker):
    case = Case("tree", 1, settings="eos")
    ended = checker.reference.texts(checker._settings["eos"])[:1]
    whole = checker.reference.texts()[0].output
    assert ended[0].output == whole[: len(ended[0].output)] != whole
    assert checker._compare(case, ended, [ended[0].output]).outcome == "equal"
    verdict = checker._compare(case, ended, [whole])
    assert (verdict.outcome, verdict.position) == ("different", len(ended[0].output))
    tie = SimpleNamespace(differing=[0], margins=[-1e-9], token_ids=[0] * len(ended[0].logits))
    assert checker._difference(case, 0, ended[0], whole, tie).outcome == "different"


@pytest.mark.parametrize("cases", [list_cases(), list_quick_cases()], ids=["all", "quick"])
def test_cases_cover_everything(cases):
    assert {case.strategy for case in cases} == set(STRATEGIES)
    assert {case.layout for case in cases} == {"auto", "tree", "rows"}
    assert {case.batch_size for case in cases} == {1, 3}
    assert {case.settings for case in cases} == {"", "penalty", "eos"}
    assert {case.custom_generate for case in cases} == {False, True}
    assert len({case.name for case in cases}) == len(cases)


def run(capsys, *arguments):
    status = main(["check", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys, monkeypatch):
    path, model = tmp_path / "report.json", tmp_path / "model"
    monkeypatch.setattr("sys.argv", ["tiny_models.py", "llama", str(model)])
    write_tiny_model()
    capsys.readouterr()  # progress of transformers
    status, out, err = run(capsys, model, "--strategy", "bpd", "--json", path)
    assert (status, err) == (0, "")
    cases = list_cases(["bpd"])
    assert all(case.name in out for case in cases)
    last = out.splitlines()[-1]
    assert f"{len(cases)} cases: {len(cases)} equal, 0 refused, 0 different" in last
    assert re.search(r"at ([\d,]+) of \1 positions \(100.00%\)$", last)
    report = json.loads(path.read_text())
    assert report["model"] == "LlamaForCausalLM"
    assert [case["outcome"] for case in report["cases"]] == ["equal"] * len(cases)


def test_the_command_reads_a_folder_and_fails_where_tokens_differ(
    checker, tmp_path, capsys, wrong_call
):
    checker.model.save_pretrained(tmp_path)
    status, out, _ = run(capsys, tmp_path, "--strategy", "greedy")
    assert status == 0
    assert "prompts are random tokens" in out
    wrong_call(lambda logits: logits.roll(1, dims=-1))
    status, out, err = run(capsys, tmp_path, "--strategy", "greedy")
    assert status == 2
    assert "different: token" in out
    assert "position 1, margin" in out
    assert re.search(r"\d+ cases: 0 equal, 0 refused, \d+ different", out.splitlines()[-1])
    assert "cases of" in err


def test_the_command_fails_where_all_is_refused(checker, tmp_path, capsys, monkeypatch):
    def refuse(*_arguments, **_named):
        list_cases(["no such strategy"])  # an error of this library

    monkeypatch.setattr(Checker, "_decode", refuse)
    checker.model.save_pretrained(tmp_path)
    status, out, err = run(capsys, tmp_path, "--strategy", "greedy")
    assert status == 2
    assert re.search(r"(\d+) cases: 0 equal, \1 refused, 0 different", out.splitlines()[-1])
    assert "nothing was compared" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such/folder"], "no/such/folder: the config cannot be read"),
        (["llama", "--strategy", "fast"], "strategy is 'fast'; expected one of greedy"),
    ],
)
def test_bad_arguments_end_in_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1
