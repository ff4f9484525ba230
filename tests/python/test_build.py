"""`lattice-bpd build`: the whole command on a tiny model, and the choice of sources."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from build_runs import HEADS, build, chat_tokenizer, make_folder, stored, write_prompts
from lattice_bpd import NGramLM
from lattice_bpd.build import build as build_module
from lattice_bpd.build import choice as choice_module
from lattice_bpd.build import plan
from lattice_bpd.build.choice import MAX_NODES, Source, choose_sources
from lattice_bpd.build.job import split_chats
from lattice_bpd.cli import main
from lattice_bpd.decode import generate, load_drafter
from lattice_bpd.decode.loop import waiting
from lattice_bpd.decode.loop.engine import Engine
from lattice_bpd.draft.replay import KnownText
from lattice_bpd.models import VocabularyHeads, load_heads
from lattice_bpd.train.responses import collect, generation
from target_models import VOCAB, build_target

NEW = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path, count=40)


def test_build_writes_a_drafter_that_decodes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, labels = build_module.train_vocabulary_heads, []

    def train(model: Any, positions: Any, *arguments: Any) -> VocabularyHeads:
        labels.append(positions.labels.numpy())
        return real(model, positions, *arguments)

    monkeypatch.setattr(build_module, "train_vocabulary_heads", train)
    assert build(folder, *HEADS, "--max-size", "500K") == 0
    printed = capsys.readouterr().out
    assert "5 of 5 texts equal" in printed
    row = re.search(r"\| heads \| [+-]\d+ % \(([+-]\d+) to [+-]\d+\) \| (.*) \|", printed)
    assert row is not None  # times decide which of the two
    assert row[2] == ("used" if int(row[1]) > 0 else "kept by --keep-heads")
    assert (folder / "out" / "README.md").read_text().strip() in printed
    content = json.loads((folder / "out" / "drafter.json").read_text())
    assert content["strategy"] == "mixture"
    assert content["sources"][0] == "heads"
    heads: Any = load_heads(folder / "out")
    assert isinstance(heads, VocabularyHeads)
    assert heads.inner_size == 128  # a multiple of 32; one of 160 takes more than half
    kept = (folder / "out" / "build_files" / "states.bin.jsonl").read_text().splitlines()
    assert len(kept) == 1 + 40 + 30  # the target, its responses, and texts like those to train on
    known = labels[0] >= 0  # the varied texts come last, and train two slots
    varied = known[np.flatnonzero(known[:, 2])[-1] + 3 :]
    assert len(varied) > len(known) / 2
    assert varied[:, :2].mean() > 0.8
    model, drafter = build_target("llama"), load_drafter(folder / "out")
    prompt = [2, 4, 33, 44, 3]
    ids = torch.tensor([prompt])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20)
    result: Any = generate(model, prompt, drafter, heads=heads, max_new_tokens=20)
    assert result.token_ids == expected[0, len(prompt) :].tolist()
    arguments = ["--drafter", str(folder / "out"), "--prompt", "Hi w33", "--json"]
    assert main(["generate", str(folder / "model"), *arguments]) == 0
    text = json.loads(capsys.readouterr().out)
    ids = torch.tensor([[4, 33]])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, eos_token_id=1
    )
    assert text["token_ids"] == expected[0, 2:].tolist()


def test_a_later_build_reuses_what_was_generated(folder: Path) -> None:
    assert build(folder) == 0
    responses = folder / "out" / "build_files" / "responses.jsonl"
    before = responses.read_bytes()
    assert len(before.splitlines()) == 40
    model, tokenizer = build_target("llama"), chat_tokenizer()
    for text in before.splitlines():
        line = json.loads(text)
        ids = torch.tensor([line["prompt"]])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, eos_token_id=1
        )  # the tokenizer's
        assert line["response"] == expected[0, ids.shape[1] :].tolist()
        assert tokenizer.decode(line["prompt"]).startswith("<user> Hi")
    responses.write_bytes(b"".join(before.splitlines(keepends=True)[:30]))
    assert build(folder, "--max-size", "1K") == 0  # continues, and prunes
    assert sorted(responses.read_bytes().splitlines()) == sorted(before.splitlines())
    assert not list((folder / "out").glob("heads.*"))


def test_a_plan_and_a_time_limit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(folder, "--dry-run", "--heads") == 0
    printed = capsys.readouterr().out
    assert "40 prompts, 200 tokens in all" in printed
    assert "  heads  " in printed
    assert not (folder / "out").exists()
    assert build(folder, "--time", "1s") == 0  # at least three prompts
    assert len(stored(folder)) == 3


def test_prompts_that_the_model_writes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ("--own-prompts", "30")
    assert build(folder, *own, "--dry-run", prompts=False) == 0
    assert "  prompts  " in capsys.readouterr().out
    assert build(folder, *own, prompts=False) == 0
    printed = capsys.readouterr().out
    assert "30 of the prompts were written by the model itself" in printed
    kept = folder / "out" / "build_files"
    names = [kept / name for name in ("own_prompts.jsonl", "responses.jsonl")]
    before = [name.read_bytes() for name in names]
    written = [json.loads(line) for line in before[0].splitlines()]
    answered = [json.loads(line)["prompt"] for line in before[1].splitlines()]
    texts = set()
    for line in written:
        *text, last = line["response"]
        assert line["prompt"][:-1] == [2]  # <user>, then the seed
        if text and last in (1, 3) and not {0, 1}.intersection(text):  # the end, or <assistant>
            texts.add((2, *text, 3))
    assert sorted(answered) == sorted(map(list, texts))
    assert len(answered) == 30
    assert build(folder, *own, prompts=False) == 0  # nothing new
    assert [name.read_bytes() for name in names] == before
    assert build(folder, "--own-prompts", "20") == 0  # 40 of a file are fitted to and measured
    printed = capsys.readouterr().out
    assert "20 of the prompts were written by the model itself" in printed
    assert names[0].read_bytes() == before[0]
    parts = split_chats(range(60), range(40, 60))
    assert [len(part) for part in parts] == [50, 5, 5]
    assert parts[0] > set(range(40, 60))
    monkeypatch.setattr(collect, "_LONGEST", 1)  # none ends
    assert build(folder, *own, prompts=False, out="none") == 2
    assert "none of 64 prompts that the model wrote can be used" in capsys.readouterr().err
    monkeypatch.undo()
    assert build(folder, "--time", "1s", prompts=False, out="short") == 0
    assert len(stored(folder, "short")) < 1_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time", "soon"], "expected a time such as"),
        (["--max-size", "much"], "is not a size"),
    ],
)
def test_errors_of_build(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build(folder, *options)
    assert message in capsys.readouterr().err


def test_inputs_are_checked_before_torch_is_loaded(folder: Path) -> None:
    """What is missing, or does not fit, is an error within the time that numpy takes to load."""
    model, prompts, missing = folder / "model", folder / "prompts.json", folder / "missing"
    (folder / "two.json").write_text('["Hi", "Hi"]')
    (folder / "plain").mkdir()
    (folder / "plain" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    building = ["build", str(model), "-o", str(folder / "out"), "--prompts"]
    generating = ("generate", model, "--prompt", "Hi")
    cases = {
        (*building, missing): "no such file",
        (*building, folder): "is a folder; expected a file",
        (*building, folder / "two.json"): "found 2 prompts; expected 3 or more",
        (*building, prompts, "--costs", missing): "no such file",
        (*building, prompts, "--costs", prompts): "not a cost curve",
        (*building, prompts, "--lm", missing): "no such file",
        (*building, prompts, "--lm", prompts): "not an LM",
        (*building, prompts, "--max-size", "0"): "--max-size is 0; expected more than 0",
        (*building, prompts, "--order", "7"): "--order is 7; expected more than 0, at most 6",
        (*building, prompts, "--epochs", "nan"): "--epochs is nan; expected more than 0",
        (*building, prompts, "--batch-size", "0"): "--batch-size is 0; expected more than 0",
        (*building, prompts, "-o", prompts): "is a file; expected a folder",
        ("build", folder / "plain", *building[2:], prompts): "no config.json in this folder",
        ("build", missing, *building[2:], prompts): "no such folder",
        ("generate", missing, "--prompt", "Hi"): "no such folder",
        ("generate", folder / "plain", "--prompt", "Hi"): "no config.json in this folder",
        (*generating, "--drafter", folder / "plain"): "no drafter.json in this folder",
        (*generating, "--strategy", "draft_model", "--lm", folder / "plain"): "no config.json in",
        (*generating, "--strategy", "neural", "--lm", folder / "plain"): "no config.json in this",
        (*generating, "--lm", folder / "plain"): "is a directory; expected the file",
        (*generating, "--strategy", "greedy", "--lm", prompts): "does not use an LM",
        (*generating, "--max-nodes", "-1"): "-1",
        (*generating, "--max-new-tokens", "0"): "--max-new-tokens is 0; expected 1 or more",
        (*generating, "--compare", "--regex", "a"): "--compare: with --accept",
        (*generating, "--certificate", folder): "is a folder; expected a file to write",
        ("generate", folder / "plain", "--chat", "Hi"): "no config.json in this folder",
        ("generate", model, "--prompt", "Hi", "--drafter", missing): "no such file or folder",
        ("generate", model, "--prompt", "Hi", "--lm", missing): "no such file or folder",
    }  # fmt: skip
    program = (
        "import json, sys\nfrom lattice_bpd.cli import main\n"
        "for words in json.load(sys.stdin):\n    assert main(words) == 2\n"
        "    assert not {'torch', 'transformers'} & set(sys.modules), words"
    )
    words = json.dumps([[str(word) for word in case] for case in cases])
    done = subprocess.run(
        [sys.executable, "-c", program], input=words, capture_output=True, text=True, check=False
    )
    lines = done.stderr.splitlines()
    assert done.returncode == 0, lines
    assert len(lines) == len(cases)
    for line, message in zip(lines, cases.values(), strict=True):
        assert message in line


@pytest.mark.parametrize(("batch", "positions"), [(64, 32768), (7, 32768), (64, 500)])
def test_a_plan_counts_the_steps_of_a_batch(
    batch: int, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as generation takes, and each row gets its tokens."""
    monkeypatch.setattr(waiting, "_POSITIONS", positions)
    lengths = [5, 5, 6, 6, 7, 8, 9, 12, 15, 20, 30, 50, 60, 70, 80]
    done, step = [], Engine.step

    def note(self: Any) -> None:
        done.append(len(self.requests))
        step(self)

    monkeypatch.setattr(Engine, "step", note)
    prompts = [[2 + n % 50 for n in range(length)] for length in lengths]
    model = build_target("llama")
    list(generation.generate_responses(model, prompts, NEW, stop_token_ids=(), batch_size=batch))
    monkeypatch.setattr(plan, "_NARROW", 1e9)  # the same time for any width
    steps, rows = plan._batch_work(lengths, [NEW], NEW, batch)
    assert sum(done) == (NEW - 1) * len(lengths) == round(rows)
    assert abs(len(done) - steps) <= 0.25 * len(done)


def test_live_decoding_is_a_share_of_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path)
    write_prompts(folder, [f"w{10 + n // 50} w{12 + n % 50}" for n in range(80)])
    for share, count in ((0.0, 5), (1e6, 8)):
        monkeypatch.setattr(build_module, "LIVE_SHARE", share)
        assert build(folder) == 0
        assert f"On {count} held-out prompts" in capsys.readouterr().out


def test_responses_of_a_log_are_not_generated(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "log.jsonl"
    records: list[Any] = [{"prompt": f"w{n}", "response": "w40 w41 w42"} for n in range(10, 20)]
    hi, answer = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "w43"}
    records += [{"messages": [hi, answer, hi]}] * 2  # the second turn has no response
    file.write_text("\n".join(map(json.dumps, records)))
    out = str(folder / "out")
    assert main(["build", str(folder / "model"), "--responses", str(file), "-o", out]) == 0
    assert not (folder / "out" / "build_files" / "responses.jsonl").exists()
    printed = capsys.readouterr().out
    assert "repeat what the same response has before" not in printed
    assert "no chat template" not in printed
    (folder / "model" / "chat_template.jinja").unlink()  # as a base model
    assert main(["build", str(folder / "model"), "-o", out]) == 2
    assert "no chat template that marks the user's messages" in capsys.readouterr().err
    file.write_text(
        json.dumps([{"prompt": f"w{n}", "response": "w40 w41 " * 20} for n in range(9)])
    )
    assert main(["build", str(folder / "model"), "--responses", str(file), "-o", out]) == 0
    # 40 tokens and the end: 34 spans of 8 tokens, 3 of them new
    printed = capsys.readouterr().out
    assert "76% of the responses' tokens repeat" in printed
    assert "The model has no chat template" in printed
    arguments = ["--responses", str(file), "-o", out, "--dry-run"]  # nothing to probe with
    assert main(["build", str(folder / "model"), *arguments]) == 2


def known_texts(count: int, seed: int, cycle: list[int]) -> list[KnownText]:
    """Texts that repeat a cycle from a random start, after a random prompt."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        start = int(rng.integers(len(cycle)))
        body = (cycle[start:] + cycle[:start])[:40]
        texts.append(KnownText([*rng.integers(40, VOCAB, 4).tolist(), *body], 4))
    return texts


def test_a_source_is_used_if_its_gain_is_certain() -> None:
    rng = np.random.default_rng(0)
    cycle = rng.permutation(40).tolist()
    useful = NGramLM.train([cycle * 3], 2, vocab_size=VOCAB, smoothing="witten_bell")
    noise = [rng.integers(40, VOCAB, 40).tolist() for _ in range(20)]
    useless = NGramLM.train(noise, 2, vocab_size=VOCAB, smoothing="witten_bell")
    times = np.linspace(1.0, 1.5, MAX_NODES + 1)
    fitting, held_out = known_texts(8, 1, cycle), known_texts(8, 2, cycle)
    sources = [Source("useless", useless), Source("useful", useful), Source("again", useful)]
    choice = choose_sources(VOCAB, sources, fitting, held_out, times, 0.0)
    assert [step.is_used for step in choice.steps] == [False, True, False]
    assert choice.lms == [useful]
    assert not choice.heads
    assert choice.gain.low > 1.0
    assert choice.tokens_per_call > 3.0
    chain = choose_sources(VOCAB, sources[1:2], fitting, held_out, times, 0.0, is_chain=True)
    assert chain.lms == [useful]
    assert choice.tokens_per_call >= chain.tokens_per_call > 3.0
    # the expected seconds are those of the replayed calls
    seconds = choice_module._Measured(VOCAB, [], fitting, held_out, times, times, False)
    assert sum(seconds.seconds) >= sum(seconds.calls) * times[0]


def test_heads_whose_time_exceeds_their_gain_are_left_out() -> None:
    cycle = np.random.default_rng(0).permutation(40).tolist()

    def with_heads(texts: list[KnownText]) -> list[KnownText]:
        """Heads that know two slots exactly."""
        found = []
        for text in texts:
            body = [*text.token_ids[4:], 0, 0, 0]
            ids = np.array([body[n + 1 : n + 3] for n in range(40)], np.int32)[:, :, None]
            candidates = ids, np.zeros(ids.shape, np.float32)
            found.append(KnownText(text.token_ids, 4, candidates))
        return found

    times = np.linspace(1.0, 1.5, MAX_NODES + 1)
    texts = with_heads(known_texts(8, 1, cycle)), with_heads(known_texts(8, 2, cycle))
    fast = choose_sources(VOCAB, [Source("heads", None)], *texts, times, 0.1)
    assert fast.heads
    assert 1.3 < fast.gain.value < 1.8  # three tokens a call of 1.1 + a few nodes
    slow = choose_sources(VOCAB, [Source("heads", None)], *texts, times, 3.0)
    assert not slow.heads
    kept = choose_sources(VOCAB, [Source("heads", None, keep=True)], *texts, times, 3.0)
    assert kept.heads
