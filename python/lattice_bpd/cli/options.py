"""Options of commands, generated from the dataclasses and functions that they are passed to.

An argument's type, default and description are declared once, where the library documents it.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd import train
from lattice_bpd.draft.config import STRATEGIES, DraftConfig, check_used
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.pretrained import Pretrained, find_pretrained

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Parser = argparse.ArgumentParser | argparse._ArgumentGroup

SMOOTHINGS = ("katz", "kneser_ney", "modified_kneser_ney", "witten_bell", "absolute")
TEXT_OPTIONS = ("tokenizer", "vocab_size", "boundaries", "field", "bos_id", "eos_id", "unk_id")
CORPUS_OPTIONS = (*TEXT_OPTIONS, "id_type", "threads")
ESTIMATE_OPTIONS = ("min_counts", "smoothing", "unseen", "katz_k")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], None],
    *,
    summary: str,
    description: str,
    epilog: str = "",
) -> argparse.ArgumentParser:
    """Adds a command: `summary` is its line in the list of commands, `epilog` its examples."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_options(
    parser: Parser, source: Callable[..., Any], names: Iterable[str], **changes: dict[str, Any]
) -> None:
    """Adds an option for each named argument of a function, or field of a dataclass.

    A bool is a flag that changes its default. "None: .." in a description is what happens without
    the option.

    Args:
        parser: a command's parser, or a group of it.
        source: the function or dataclass, with a Google-style docstring.
        names: of its arguments.
        changes: by name, arguments of `add_argument` that differ; "flag" is the option's name.
    """
    parameters = inspect.signature(source).parameters
    for name in names:
        default, kind = parameters[name].default, str(parameters[name].annotation).split(" | ")[0]
        if kind == "bool":
            options: dict[str, Any] = {"action": "store_false" if default else "store_true"}
        else:
            parse, metavar = _KINDS.get(kind, (str, name.upper()))
            options = {"type": parse, "metavar": metavar, "default": default}
        text = describe(source, name)
        if kind != "bool" and default not in (None, (), inspect.Parameter.empty):
            number = f"{default:g}" if isinstance(default, float) else default
            text = f"{text} (default {number})"
        change = {**changes.get(name, {})}
        flag = change.pop("flag", f"--{'no-' if default is True else ''}{name.replace('_', '-')}")
        if "choices" in change:
            options.pop("metavar")
        options = {"help": text.replace("%", "%%"), **options, **change, "dest": name}
        parser.add_argument(*flag.split(), **options)


def describe(source: Callable[..., Any], name: str) -> str:
    """The description of an argument in a docstring, for a help text."""
    text = inspect.cleandoc(source.__doc__ or "")
    match = re.search(rf"^    {name}: (.*?)(?=^    \w+: |^\S|\Z)", text, re.M | re.S)
    line = "" if match is None else " ".join(match.group(1).split()).rstrip(".")
    line = re.sub(r"[;,] see :\w+:`\w+`|:\w+:|`", "", line)
    line = re.sub(r"(?:^|[.;,] )None: ([^.;]*)", r" (default: \1)", line)
    line = line.removeprefix("whether to ")
    return line[:1].lower() + line[1:] if re.match(r"[A-Z][a-z]+ ", line) else line


def pick(args: object, names: Iterable[str]) -> dict[str, Any]:
    """The values of options, or of other attributes, by name."""
    return {name: getattr(args, name) for name in names}


def parse_size(text: str) -> int:
    """Parses 100M, 2.5k or 1000.

    Raises:
        ArgumentTypeError: not such a number.
    """
    try:
        return round(float(text.rstrip("kKMG")) * _UNITS.get(text[-1:].lower(), 1))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; expected a number such as 250000, 500k or 100M"
        ) from None


def parse_numbers(text: str) -> list[float]:
    """Parses comma-separated numbers."""
    return _parse_list(text, float, "numbers, such as 0.7,0.3")


def parse_counts(text: str) -> list[int]:
    """Parses comma-separated whole numbers."""
    return _parse_list(text, int, "whole numbers, such as 1,1,2,4")


def _parse_list(text: str, kind: Callable[[str], Any], expected: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; expected comma-separated {expected}") from None


_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "N"),
    "float": (float, "X"),
    "Path": (Path, "FILE"),
    "StrPath": (str, "FILE"),
    "Vocab": (Path, "FILE"),
    "Sequence[int]": (parse_counts, "N1,N2,.."),
    "Sequence[float]": (parse_numbers, "X1,X2,.."),
    "tuple[str, ...]": (lambda text: tuple(text.split(",")), "A,B,.."),
}  # by annotation: how a value is read, and its name in help texts


def add_draft_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Adds options for fields of DraftConfig, all but the strategy; see `read_draft_options`.

    One that is left out is None, since a strategy refuses options that it does not use.
    """
    parser.add_argument(
        "--strategy",
        choices=tuple(STRATEGIES),
        metavar="NAME",
        help=f"how to draft, see below (default {DraftConfig.strategy})",
    )
    add_options(parser, DraftConfig, names, max_nodes={"type": _nodes, "metavar": "N"})
    parser.set_defaults(**dict.fromkeys(names))


def _nodes(value: str) -> int | str:
    return value if value == "auto" else int(value)


def read_draft_options(where: str, args: argparse.Namespace, names: Sequence[str]) -> DraftConfig:
    """The config that the options of `add_draft_options` describe.

    Args:
        where: the command's name, for error messages.
        args: parsed arguments.
        names: as given to `add_draft_options`.

    Raises:
        ValueError: an option out of range, or not used by the strategy.
    """
    given = {name: value for name, value in pick(args, names).items() if value is not None}
    config = DraftConfig.make(where, args.strategy, given)
    check_used(where, config.strategy, given)
    return config


def list_strategies() -> str:
    """A line for each strategy: its name and what it drafts."""
    width = max(map(len, STRATEGIES))
    return "\n".join(f"  {name:<{width}}  {info.summary}" for name, info in STRATEGIES.items())


def add_heads_option(parser: Parser) -> None:
    """Adds --heads."""
    parser.add_argument(
        "--heads", type=Path, metavar="DIR",
        help="folder of the draft heads, if they are not in the model's folder; also a Medusa "
        "checkpoint or a block drafter as published",
    )  # fmt: skip


def add_code_option(parser: Parser) -> None:
    """Adds --trust-remote-code."""
    parser.add_argument(
        "--trust-remote-code", action="store_true",
        help="run Python code that a model or tokenizer brings along; read it first",
    )  # fmt: skip


def add_inputs(parser: Parser, also: str = "") -> None:
    """Adds the input files of a corpus; `also` extends their description."""
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT",
        help="text (plain, .gz, .zst, .jsonl), token ids (.npy, .bin), folders of them, or - for "
        f"standard input{also}",
    )  # fmt: skip


def add_corpus_options(parser: argparse.ArgumentParser, *, bin_files: bool = True) -> None:
    """Adds TEXT_OPTIONS, with `bin_files` all of CORPUS_OPTIONS but the threads."""
    names = [*TEXT_OPTIONS, "id_type"] if bin_files else TEXT_OPTIONS
    add_options(
        parser.add_argument_group("corpus"), train.Corpus, names,
        boundaries={
            "default": "paragraph", "choices": ("line", "paragraph", "document"),
            "help": "unit of text between <s> and </s>: a line, a paragraph (default), or a "
            "document, which is a whole file or the text of one .jsonl object",
        },
        id_type={"choices": ("uint16", "uint32")},
    )  # fmt: skip


def make_corpus(args: argparse.Namespace, inputs: list[Path]) -> train.Corpus:
    """Opens the corpus of the options.

    Raises:
        ImportError: a tokenizer's library is not installed.
        OSError: a file is missing.
        ValueError: inconsistent options.
    """
    return train.Corpus(inputs, **pick(args, CORPUS_OPTIONS))


def add_estimate_options(parser: Parser, smoothings: Sequence[str] = SMOOTHINGS) -> None:
    """Adds ESTIMATE_OPTIONS."""
    add_options(
        parser, NGramLM.train, ESTIMATE_OPTIONS,
        smoothing={"choices": smoothings}, unseen={"choices": ("cost", "uniform")},
    )  # fmt: skip


def add_model_option(parser: Parser) -> None:
    """Adds --model and --trust-remote-code, for `use_model_vocabulary`."""
    parser.add_argument(
        "--model",
        help="folder or hub name of the model that the LM is for, instead of --tokenizer and "
        "--vocab-size: its tokenizer, and the vocab_size of its config.json, which may be more "
        "than the tokenizer's",
    )  # fmt: skip
    add_code_option(parser)


def use_model_vocabulary(args: argparse.Namespace) -> None:
    """Sets --tokenizer and --vocab-size by --model, if it is given.

    Raises:
        OSError: no such folder, or it has no config.json; or the hub does not provide it.
        ValueError: config.json without a size, or one of the two options is given too.
    """
    if args.model is None:
        return
    for option, value in (("--tokenizer", args.tokenizer), ("--vocab-size", args.vocab_size)):
        if value is not None:
            raise ValueError(
                f"{option} with --model, which has both; leave out {option}, or give --tokenizer "
                "and --vocab-size instead of --model"
            )
    model = find_pretrained(args.model, args.trust_remote_code)
    args.tokenizer, args.vocab_size = model, _model_vocab_size(model)


def _model_vocab_size(model: Pretrained) -> int:
    """The vocab_size of a model's config.json, in its text_config where it has one there."""
    from lattice_bpd.cli.files import require_model

    require_model(model.folder, "--model ")
    config = model.config
    if not config and model.base is not None:
        return _model_vocab_size(find_pretrained(model.base))
    for part in (config.get("text_config"), config):
        size = part.get("vocab_size") if isinstance(part, dict) else None
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    raise ValueError(
        f"{model.folder / 'config.json'} has no vocab_size; give --tokenizer and --vocab-size, not "
        "--model"
    )
