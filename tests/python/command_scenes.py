"""For each command: the library functions that it calls, and arguments for a plain run.

`test_command_options.py` runs every command with these functions replaced by ones that note what
they are given. A new command needs a Scene; a new option needs nothing, unless its value is special
(a file that must exist, a choice that another option excludes).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import lattice_bpd.build.build  # noqa: F401  (before a scene replaces what it imports)
from lattice_bpd.build.report import PlainResult
from lattice_bpd.lm.convert import LevelInfo, LmInfo
from lattice_bpd.lm.training import TextScore

Arguments = dict[str, list[str]]  # of each option or positional by its dest; [] for a flag


class End(Exception):  # noqa: N818
    """Raised by the last function of a scene: what follows is printing."""


END = object()


@dataclass
class Stub:
    """Whatever a replaced function returns; its name shows where it came from."""

    name: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"{self.name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Stub:
        return self


@dataclass
class Scene:
    """A plain run of a command.

    Attributes:
        arguments: what it is given.
        calls: functions to replace, by dotted name, and what they return; END: the scene ends
            there. A callable is called with the arguments.
        files: to write into the working folder, by name.
    """

    arguments: Arguments
    calls: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)


@dataclass
class Change:
    """What to do to one option, where the rule of `test_command_options.py` is not enough.

    Attributes:
        values: for the option; None: by its type.
        wanted: what must be passed on: a value, or a predicate of it; None: by the values.
        must: further "function.parameter" that must change.
        drop: arguments to leave out beside it.
        given: arguments of both runs, beside those of the scene.
        files: to write, beside those of the scene.
    """

    values: list[str] | None = None
    wanted: Any = None
    must: set[str] = field(default_factory=set)
    drop: tuple[str, ...] = ()
    given: Arguments = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


class FakeTokenizer:
    """A character is a token."""

    def encode(self, text: str) -> Any:
        ids = [ord(letter) for letter in text]
        return SimpleNamespace(ids=ids, special_tokens_mask=[0] * len(ids))

    def encode_batch(self, texts: list[str]) -> list[Any]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}


class SavedLm(Stub):
    """An LM whose methods note their arguments; `save` leaves a file for commands that read it."""

    vocab_size = 50
    order = 3

    def __init__(self, note: Callable[..., None], name: str = "lm") -> None:
        super().__init__(name)
        self._note = note

    def prune(self, **options: Any) -> SavedLm:
        self._note("prune", lm=self, **options)
        return SavedLm(self._note, "pruned")

    def quantise(self, bits: int) -> SavedLm:
        self._note("quantise", lm=self, bits=bits)
        return SavedLm(self._note, "quantised")

    def evaluate(self, sequences: Any, *, bos: bool, eos: bool, threads: int) -> TextScore:
        self._note("evaluate", sequences=sequences, bos=bos, eos=eos, threads=threads)
        return TextScore(4, 0, -4.0, [4])

    def save(self, path: Any) -> None:
        self._note("lm.save", path=path)
        path.touch()

    def save_parts(self, folder: Any) -> None:
        self._note("lm.save_parts", parts=folder)


def certificate(note: Callable[..., None]) -> Any:
    return SimpleNamespace(
        verdict="lossless", difference=0.1, noise=SimpleNamespace(logit_bound=0.5), differing=[],
        token_ids=[1], save=lambda path: note("certificate.save", path=path),
    )  # fmt: skip


def decoded(note: Callable[..., None]) -> Any:
    from lattice_bpd.decode.loop.decode import DecodeResult
    from lattice_bpd.decode.state.statistics import DecodeStats

    stats = DecodeStats(target_calls=1, seconds={"total": 1.0}, tokens=1)
    return DecodeResult([65], "length", stats, certificate=certificate(note))


DRAFTER = (
    '{"format": "lattice-bpd drafter", "version": 1, "strategy": "bpd", "vocab_size": 50, '
    '"num_slots": 4}'
)
INFO = LmInfo(9, [LevelInfo(1, 9, 90, (0, 4, 0, 0), 0.0, 0.0)], [])
READ_LM = "lattice_bpd.lm.convert.read_lm"
WRITE_LM = "lattice_bpd.lm.convert.write_lm"
LOAD_LM = "lattice_bpd.NGramLM.load"
LOAD_TOKENIZER = "lattice_bpd.cli.files.load_tokenizer"
FIND_STOP_TOKENS = "lattice_bpd.models.checkpoint.find_stop_tokens"
CORPUS = "lattice_bpd.train.Corpus"


def returns(value: Any) -> Callable[..., Any]:
    """A function of anything, which gives the value."""
    return lambda *_, **__: value


def make_scenes(note: Callable[..., None]) -> dict[str, Scene]:
    """Scenes by command; `note(name, **arguments)` records what objects are given."""
    lm = SavedLm(note)
    return {
        "build": Scene(
            {"model": ["model"], "prompts": ["prompts.jsonl"], "output": ["drafter"]},
            {
                "lattice_bpd.cli.files.load_causal_lm": lambda path: Stub(str(path)),
                "transformers.AutoTokenizer.from_pretrained": Stub("tokenizer"),
                "lattice_bpd.train.responses.prompts.read_chats": returns([]),
                "lattice_bpd.build.report.make_plan": END,
                "lattice_bpd.build.build.build_drafter": END,
            },
        ),
        "generate": Scene(
            {"model": ["model"], "prompt": ["the"], "strategy": ["mixture"]},
            {
                "lattice_bpd.cli.generate.check_folders": None,
                LOAD_TOKENIZER: FakeTokenizer(),
                LOAD_LM: lm,
                "lattice_bpd.models.checkpoint.has_heads": returns(True),
                "lattice_bpd.models.BlockwiseLM.from_pretrained": SimpleNamespace(
                    base=SimpleNamespace(
                        config=SimpleNamespace(
                            get_text_config=returns(SimpleNamespace(vocab_size=50))
                        )
                    )
                ),
                "lattice_bpd.cli.files.load_causal_lm": Stub("draft model"),
                "lattice_bpd.cli.files.to_device": lambda model: model,
                FIND_STOP_TOKENS: frozenset({0}),
                "lattice_bpd_constraints.GuidanceConstraint.from_regex": Stub("regex"),
                "lattice_bpd_constraints.GuidanceConstraint.from_json_schema": Stub("schema"),
                "lattice_bpd.decode.load_drafter": Stub("drafter"),
                "lattice_bpd.decode.generate": lambda *_, **__: decoded(note),
                "transformers.AutoTokenizer.from_pretrained": Stub("tokenizer"),
                "lattice_bpd.train.responses.prompts.encode_prompt": lambda _, messages, *__: list(
                    messages[0]["content"].encode()
                ),
                "lattice_bpd.build.report.generate_plainly": lambda *_: PlainResult([65], 1.0),
            },
        ),
        "heads train": Scene(
            {"inputs": ["text.txt"], "output": ["heads"], "recipe": ["frozen"], "base": ["base"]},
            {"torch.set_num_threads": None, "lattice_bpd_kim2024.heads.run.train_heads": END},
        ),
        "drafter train": Scene(
            {"inputs": ["text.txt"], "output": ["model"], "target": ["target"]},
            {
                "torch.set_num_threads": None,
                "lattice_bpd_drafters.block_run.run_block_job": END,
                "lattice_bpd_drafters.selector_run.run_selector_job": END,
            },
        ),
        "rescorer train": Scene(
            {"inputs": ["text.txt"], "output": ["model"], "target": ["target"]},
            {"torch.set_num_threads": None, "lattice_bpd_kim2024.rescorer.run_rescorer_job": END},
        ),
        "ngram train": Scene(
            {"inputs": ["text.txt"], "output": ["out.lm"]},
            {
                "lattice_bpd.train.corpus_lm.is_counts_file": returns(False),
                CORPUS: Stub("corpus"),
                "lattice_bpd.train.train_corpus": lm,
                WRITE_LM: END,
            },
        ),
        "ngram spark": Scene(
            {"inputs": ["text.txt"], "output": ["out.lm"]},
            {
                "lattice_bpd_spark.start_session": Stub("session"),
                "lattice_bpd_spark.read_corpus": Stub("corpus"),
                "lattice_bpd_spark.count_corpus": Stub("counts"),
                "lattice_bpd_spark.train_counts": lm,
                "lattice_bpd_spark.prune_lm": lm,
                "lattice_bpd_spark.assemble": lm,
            },
        ),
        "ngram count": Scene(
            {"inputs": ["text.txt"], "output": ["out.counts"]},
            {CORPUS: Stub("corpus"), "lattice_bpd.train.count_corpus": END},
        ),
        "ngram merge-counts": Scene(
            {"counts": ["a.counts"], "output": ["out.counts"]},
            {"lattice_bpd.train.merge_counts": END},
        ),
        "ngram distil": Scene(
            {"model": ["model"], "corpus": ["text.txt"], "output": ["out.lm"]},
            {
                "lattice_bpd.cli.files.load_causal_lm": SimpleNamespace(
                    config=SimpleNamespace(get_text_config=returns(SimpleNamespace(vocab_size=50)))
                ),
                CORPUS: SimpleNamespace(batches=list),
                "lattice_bpd.train.distil.distil_ngram": lm,
                WRITE_LM: END,
            },
        ),
        "ngram prune": Scene({"lm": ["in.lm"], "output": ["out.lm"]}, {READ_LM: lm, WRITE_LM: END}),
        "ngram merge": Scene(
            {"lms": ["a.lm", "b.lm"], "output": ["out.lm"], "weights": ["0.5,0.5"]},
            {
                READ_LM: lm,
                "lattice_bpd.cli.ngram.read_sequences": Stub("sequences"),
                "lattice_bpd.NGramLM.tune_weights": returns([0.3, 0.7]),
                "lattice_bpd.NGramLM.interpolate": Stub("mixture"),
                WRITE_LM: END,
            },
        ),
        "ngram convert": Scene(
            {"input": ["in.lm"], "output": ["out.lm"]}, {READ_LM: lm, WRITE_LM: END}
        ),
        "ngram from-kenlm": Scene(
            {"input": ["in.arpa"], "output": ["out.lm"]},
            {"lattice_bpd.lm.convert.read_kenlm": returns((lm, ["word"]))},
        ),
        "ngram info": Scene(
            {"lms": ["a.lm"]},
            {"lattice_bpd.lm.convert.describe_lm": INFO},
            {"a.lm": "", "changed": ""},
        ),
        "ngram evaluate": Scene(
            {"lms": ["a.lm"], "text": ["text.ids"]},
            {READ_LM: lm, "lattice_bpd.cli.ngram.read_sequences": Stub("sequences")},
        ),
    }


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


# fmt: off
SHARED: dict[str, Change] = {
    "validation": Change(["a.txt", "b.txt"], wanted=("a.txt", "b.txt")),
    "min_counts": Change(["1,2"], wanted=(1, 2)),
    "prune_to": Change(["2k"], wanted=2000),
    "quantise": Change(["8"], wanted=8, must={"write_lm.lm"}),
    "accept": Change(["top_k:4"]),
    "max_nodes": Change(["3"], wanted=3),
    "json": Change(wanted=is_json),
}
"""Options of several commands; CHANGES has those of one."""
PROMPT = (99, 97, 116)
LOW_RANK = Change(given={"selector": ["low-rank"]})
OF_MODEL = Change(["m"], wanted=77,
                  files={"m/config.json": '{"vocab_size": 77}', "m/tokenizer.json": ""})
CHANGES: dict[str, dict[str, Change]] = {
    "build": {
        "chat": Change(wanted=False),
        "max_bytes": Change(["4K"], wanted=4096),
        "seconds": Change(["20m"], wanted=1200.0),
    },
    "generate": {
        "prompt": Change(["cat"], wanted=PROMPT),
        "prompt_file": Change(["cat.txt"], wanted=PROMPT, drop=("prompt",),
                              files={"cat.txt": "cat"}),
        "chat": Change(["cat"], wanted=PROMPT, drop=("prompt",)),
        "compare": Change(wanted=64),
        "strategy": Change(["greedy"]),
        "num_drafts": Change(given={"strategy": ["p_best"]}),
        "sources": Change(["heads,text"], wanted=("heads", "text")),
        "alpha": Change(given={"strategy": ["tree"]}),
        "temperature": Change(given={"strategy": ["tree"]}),
        "draft_length": Change(given={"strategy": ["draft_model"]}),
        "draft_model": Change(files={"changed/config.json": "{}"}),
        "drafter": Change(["changed.json"], must={"load_drafter.path"}, drop=("strategy",),
                          files={"changed.json": DRAFTER}),
        "json_schema": Change(["schema.json"], wanted="{} ", files={"schema.json": "{} "}),
    },
    "heads train": {
        "first_head": Change(wanted=False),
        "dropout": Change(wanted=False),
        "recipe": Change(["finetune"]),
        "boundaries": Change(["line"]),
        "head_weights": Change(["1,2"], wanted=(1.0, 2.0)),
    },
    "drafter train": {
        "hidden_layers": Change(["0,2"], wanted=(0, 2)),
        "selector": Change(["low-rank"], wanted=64),
        "precision": Change(["bf16"]),
        "rank": LOW_RANK, "top_k": LOW_RANK, "learning_rate": LOW_RANK,
    },
    "ngram train": {"model": OF_MODEL},
    "ngram spark": {"from_parts": Change(drop=("inputs",))},
    "ngram count": {"model": OF_MODEL},
    "ngram prune": {"keep_ids": Change(["ids.txt"], wanted=(3, 5), files={"ids.txt": "3\n5\n"})},
    "ngram merge": {
        "lms": Change(["changed", "b.lm"], wanted="changed"),
        "weights": Change(["0.25,0.75"], wanted=(0.25, 0.75)),
        "heldout": Change(drop=("weights",)),
        "tokenizer": Change(drop=("weights",), given={"heldout": ["text.ids"]}),
    },
    "ngram evaluate": {"bos": Change(wanted=False), "eos": Change(wanted=False)},
}
# fmt: on
