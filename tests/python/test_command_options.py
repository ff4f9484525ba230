"""Options of commands reach the library: every option of `build` and `ngram`, and DraftConfig's."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tokenizers import Tokenizer, models
from transformers import PretrainedConfig

import lattice_bpd
from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.cli import build_parser
from lattice_bpd.cli.generate import _OPTIONS
from lattice_bpd.cli.options import read_draft_options
from lattice_bpd.draft.config import STRATEGIES
from lattice_bpd.train import Corpus, count_corpus

ESTIMATE = "--min-counts 1,2 --smoothing absolute --unseen uniform --katz-k 3"
ESTIMATED = {"min_counts": [1, 2], "smoothing": "absolute", "unseen": "uniform", "katz_k": 3}
IDS = "--bos-id 3 --eos-id 2 --unk-id 1"
NAMED = {"bos_id": 3, "eos_id": 2, "unk_id": 1}
MODEL = "--model m --trust-remote-code"
CORPUS = (
    f"--tokenizer t.json --vocab-size 9 --boundaries line --field body {IDS} --id-type uint32 "
    "--threads 2"
)
READ = {**NAMED, "tokenizer": "t.json", "vocab_size": 9, "boundaries": "line",
        "field": "body", "id_type": "uint32", "threads": 2}  # fmt: skip
TRAIN, CONVERT = "lattice_bpd.train.", "lattice_bpd.lm.convert."

# A command line with every option, or several; the functions that get them, of which the last one
# is not run; and their arguments.
LINES: list[tuple[str, str, dict[str, Any]]] = [
    ("build m -o out --prompts a b --responses c --server url --server-model s --heads "
     "--keep-heads --no-chat --max-new-tokens 7 --lm x y --order 3 --own-prompts 9 --dry-run "
     "--max-size 4K --epochs 0.5 --batch-size 5 --costs z --time 20m --trust-remote-code",
     "lattice_bpd.cli.build.BuildJob",
     {"output": Path("out"), "prompts": ("a", "b"), "responses": ("c",), "server": "url",
      "server_model": "s", "heads": True, "keep_heads": True, "chat": False, "max_new_tokens": 7,
      "lms": (Path("x"), Path("y")), "order": 3, "own_prompts": 9, "max_bytes": 4000,
      "epochs": 0.5, "batch_size": 5, "costs": Path("z"), "seconds": 1200.0}),
    ("build m -o out --responses c --keep-heads", "lattice_bpd.cli.build.BuildJob",
     {"heads": True, "chat": True}),
    (f"ngram train ids.npy -o out {CORPUS} {ESTIMATE} --order 2 --memory 5M",
     f"{TRAIN}Corpus {TRAIN}train_corpus", {**READ, **ESTIMATED, "order": 2, "memory": "5M"}),
    (f"ngram train ids.npy -o out {MODEL}",
     f"lattice_bpd.cli.options.find_pretrained {TRAIN}Corpus {TRAIN}train_corpus",
     {"name": "m", "trust_remote_code": True, "vocab_size": 9, "order": 4}),
    ("ngram train --words ids.txt -o out --normal-form NFKC --lowercase --min-word-count 3 "
     "--vocab-size 9 --field body --boundaries paragraph", f"{TRAIN}word_corpus",
     {"inputs": ["ids.txt"], "normal_form": "NFKC", "lowercase": True, "min_word_count": 3,
      "vocab_size": 9, "field": "body", "boundaries": "paragraph"}),
    (f"ngram train in.counts -o out {ESTIMATE} --order 2 --memory 5M --threads 2",
     f"{TRAIN}train_counts", {**ESTIMATED, "order": 2, "memory": "5M", "threads": 2}),
    (f"ngram count ids.npy -o out {CORPUS} --order 2 --memory 5M --resume --checkpoint 7",
     f"{TRAIN}Corpus {TRAIN}count_corpus",
     {**READ, "order": 2, "memory": "5M", "resume": True, "checkpoint_minutes": 7.0}),
    (f"ngram count ids.npy -o out {MODEL}", f"{TRAIN}Corpus {TRAIN}count_corpus",
     {"vocab_size": 9, "order": 4}),
    ("ngram merge-counts in.counts -o out --order 2 --allow-repeats --memory 5M --threads 2",
     f"{TRAIN}merge_counts", {"order": 2, "allow_repeats": True, "memory": "5M", "threads": 2}),
    ("ngram prune in.lm -o out --theta 0.5 --prune-to 2k --min-counts 1,2 --keep-ids ids.txt "
     "--quantize 8 --threads 2", "lattice_bpd.NGramLM.prune",
     {"theta": 0.5, "prune_to": 2000, "min_counts": [1, 2], "keep_ids": [1, 2], "threads": 2}),
    ("ngram prune in.lm -o out --theta 0.5 --quantize 8", "lattice_bpd.NGramLM.quantize",
     {"bits": 8}),
    ("ngram merge in.lm in.lm -o out --weights 0.25,0.75 --threads 2",
     "lattice_bpd.NGramLM.interpolate", {"weights": [0.25, 0.75], "threads": 2}),
    ("ngram merge in.lm in.lm -o out --heldout ids.txt --tokenizer t.json --threads 2",
     "lattice_bpd.cli.ngram.read_sequences lattice_bpd.NGramLM.tune_weights",
     {"path": Path("ids.txt"), "tokenizer": Path("t.json"), "threads": 2}),
    (f"ngram convert in.lm out --vocab t.json --words --vocab-size 9 {IDS} --quantize 8 "
     "--to arpa", f"{CONVERT}read_lm",
     {**NAMED, "vocab": Path("t.json"), "words": True, "vocab_size": 9}),
    ("ngram convert in.lm out --vocab t.json --quantize 8 --to arpa",
     f"lattice_bpd.NGramLM.quantize {CONVERT}write_lm",
     {"bits": 8, "to": "arpa", "vocab": Path("t.json")}),
    ("ngram evaluate in.lm --text ids.txt --tokenizer t.json --no-bos --no-eos --threads 2 --json",
     "lattice_bpd.cli.ngram.read_sequences lattice_bpd.NGramLM.evaluate",
     {"tokenizer": Path("t.json"), "bos": False, "eos": False, "threads": 2}),
]  # fmt: skip


class End(Exception):  # noqa: N818
    """Raised by the last function."""


def note(
    name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, is_last: bool
) -> None:
    """Makes a function add its arguments to `given`."""
    path, _, function = name.rpartition(".")
    try:
        holder: Any = importlib.import_module(path)
    except ModuleNotFoundError:  # of a class
        holder = getattr(lattice_bpd, path.rpartition(".")[2])
    original = getattr(holder, function)

    def replaced(*args: Any, **options: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **options).arguments
        given.update({**arguments, **arguments.get("options", {})})
        if is_last:
            raise End
        return original(*args, **options)

    is_method = (
        inspect.isclass(holder)
        and inspect.isfunction(original)
        and "self" in str(inspect.signature(original))
    )
    monkeypatch.setattr(holder, function, replaced if is_method else staticmethod(replaced))


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"vocab_size": 9}')
    words = models.WordLevel({str(number): number for number in range(9)}, unk_token="0")
    Tokenizer(words).save("t.json")
    (tmp_path / "ids.txt").write_text("1 2\n")
    np.save(tmp_path / "ids.npy", np.arange(9))
    NGramLM.train([[1, 2]], 2, vocab_size=9, smoothing="witten_bell").save(tmp_path / "in.lm")
    count_corpus(Corpus(["ids.npy"], vocab_size=9), "in.counts", order=2)
    config = PretrainedConfig(vocab_size=9)
    monkeypatch.setattr(
        "lattice_bpd.cli.files.load_causal_lm", lambda _: SimpleNamespace(config=config)
    )


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(
    ("line", "functions", "expected"), LINES, ids=[" ".join(line.split()[:2]) for line, *_ in LINES]
)
def test_options_reach_the_library(
    line: str, functions: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    args, given = build_parser().parse_args(line.split()), dict[str, Any]()
    for name in functions.split():
        note(name, given, monkeypatch, is_last=name == functions.split()[-1])
    with pytest.raises(End):
        args.run(args)
    found = {name: given.get(name) for name in expected}
    found["keep_ids"] = np.ravel(found["keep_ids"]).tolist() if "keep_ids" in found else None
    assert found == {"keep_ids": None, **expected}


def test_every_option_is_above() -> None:
    lines = [line.split() for line, *_ in LINES]
    for command in {" ".join(words[: 1 + (words[0] == "ngram")]) for words in lines}:
        parser = build_parser()
        for word in command.split():
            (choices,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
            parser = choices[word]
        used = {word for words in lines if " ".join(words).startswith(command) for word in words}
        options = [set(action.option_strings) for action in parser._actions[1:]]
        assert all(not names or names & used for names in options), command


@pytest.mark.parametrize("name", _OPTIONS)
def test_draft_options_are_fields_of_the_config(name: str) -> None:
    values: dict[str, Any] = {"sources": ("heads", "text"), "alpha": 0.375, "temperature": 0.375}
    value = values.get(name, 3)
    strategy = next(n for n, info in STRATEGIES.items() if name in info.options)
    words = ["--strategy", strategy, f"--{name.replace('_', '-')}"]
    words.append(",".join(value) if isinstance(value, tuple) else str(value))
    args = build_parser().parse_args(["generate", "m", *words])
    config = read_draft_options("generate", args, _OPTIONS)
    assert config == DraftConfig(strategy, **{name: value})
