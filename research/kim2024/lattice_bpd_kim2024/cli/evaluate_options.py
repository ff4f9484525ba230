"""Options, loaders and checks that record, replay, evaluate, report and tune share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lattice_bpd.cli.files import check_model, has_encoder_decoder
from lattice_bpd.vocabulary import check_same_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from lattice_bpd import NGramLM
    from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
    from lattice_bpd.decode.state.model import DraftingModel
    from lattice_bpd_kim2024.record.write import Prompt, RecordOptions

Number = TypeVar("Number", int, float)
TEXT_LIMIT = "the first N texts of each task"


def add_recording_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of decoding and recording prompts."""
    group = parser.add_argument_group("recording")
    group.add_argument("--tokenizer", type=Path, help="or its folder (default: MODEL's own)")
    group.add_argument("--limit", type=int, metavar="N", help="the first N examples of each file")
    group.add_argument("--field", help="field with the text, for task jsonl")
    group.add_argument("--max-new-tokens", type=int, default=64, metavar="M", help="default 64")
    group.add_argument(
        "--top-k", type=int, default=16, metavar="K", help="candidates kept, up to 64 (default 16)"
    )
    group.add_argument("--prompt-tokens", type=int, metavar="T", help="of task text (default 48)")
    group.add_argument(
        "--stop-token-id", type=int, action="append", metavar="ID",
        help="decoding ends after it; repeatable (default: the model's own)",
    )  # fmt: skip
    group.add_argument("--batch-size", type=int, default=8, metavar="B", help="default 8")
    group.add_argument(
        "--texts-per-shard", type=int, default=64, metavar="N",
        help="an interrupted run continues after its last complete shard (default 64)",
    )  # fmt: skip
    group.add_argument(
        "--truncate", action="store_true", help="cut overlong prompts at their beginning"
    )


def make_record_options(args: argparse.Namespace) -> RecordOptions:
    """The options as `write_record` takes them."""
    from lattice_bpd_kim2024.record.write import RecordOptions

    stops = None if args.stop_token_id is None else tuple(args.stop_token_id)
    names = ("top_k", "max_new_tokens", "batch_size", "texts_per_shard", "truncate")
    return RecordOptions(stop_token_ids=stops, **{name: getattr(args, name) for name in names})


def add_stop_tokens(options: RecordOptions, model: Any, tokenizer: Path) -> RecordOptions:
    """The options with the stop tokens of a model of `load_folders`, unless they have some."""
    from dataclasses import replace

    from lattice_bpd.models.checkpoint import find_stop_tokens

    if options.stop_token_ids is not None:
        return options
    base = model.target.base if is_encoder_decoder(model) else model.base
    own = load_own_tokenizer(tokenizer)
    return replace(options, stop_token_ids=tuple(find_stop_tokens(base, own)))


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer of the `tokenizers` library, from a file or a model's folder.

    Raises:
        OSError: there is none.
        FormatError: the file is not a tokenizer, or the folder has one in Python code.
    """
    from lattice_bpd import FormatError
    from lattice_bpd.pretrained import find_pretrained
    from lattice_bpd.train.corpus import read_tokenizer

    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; expected a tokenizer.json, or its folder")
    if not path.is_dir():
        return read_tokenizer(path)  # type: ignore[no-any-return]
    made = find_pretrained(path).load_tokenizer()
    tokenizer: Tokenizer | None = getattr(made, "backend_tokenizer", None)
    if tokenizer is None:
        raise FormatError(
            f"{path}: the tokenizer is {type(made).__name__}, which is Python code; expected one "
            "of the tokenizers library"
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def load_own_tokenizer(path: Path) -> Any:
    """The tokenizer of transformers in a folder, or beside a file; None if it cannot be loaded."""
    from lattice_bpd.pretrained import find_pretrained

    try:
        return find_pretrained(path if path.is_dir() else path.parent).load_tokenizer()
    except ValueError:
        return None


def read_prompts(
    task_name: str, data: Path, args: argparse.Namespace, tokenizer: Tokenizer
) -> list[Prompt]:
    """The prompts of a task as token ids.

    Texts of task text are cut to --prompt-tokens, by default to 48; without that option a text with
    special tokens, such as those of a chat template, is not cut.
    """
    from lattice_bpd_kim2024.record.write import Prompt
    from lattice_bpd_kim2024.tasks import find_task, read_task

    task = find_task(task_name)
    examples = read_task(task, data, args.limit, args.field)
    rows = tokenizer.encode_batch([e.prompt for e in examples])
    length = args.prompt_tokens or task.prompt_tokens
    if length is not None and length < 1:
        raise ValueError(f"--prompt-tokens is {length}; expected 1 or more")
    added = tokenizer.get_added_tokens_decoder()
    special = {token_id for token_id, token in added.items() if token.special}
    prompts = []
    for example, encoded in zip(examples, rows, strict=True):
        ids = encoded.ids
        if not ids:
            raise ValueError(f"{data}: example {example.name} has no tokens; leave it out")
        if task.prompt_tokens is not None:
            # the tokenizer's own, such as one at the beginning of every text, do not count
            pairs = zip(ids, encoded.special_tokens_mask, strict=True)
            is_template = any(token in special and not own for token, own in pairs)
            ids = ids if is_template and not args.prompt_tokens else ids[:length]
        prompts.append(Prompt(ids, example.name, example.references, example.kind))
    return prompts


def load_model(directory: Path, heads: Path | None = None) -> Any:
    """Check the folders of a model and its heads, and load both; see `load_folders`.

    Args:
        directory: of the model.
        heads: folder of the heads; None: `directory`.
    """
    return load_folders(find_folders(directory, heads))


@dataclass(frozen=True)
class ModelFolders:
    """The folders of a model and its heads, as `find_folders` found them.

    Attributes:
        model: of the model.
        heads: of the heads; None: the model's.
        is_encoder_decoder: of the model.
    """

    model: Path
    heads: Path | None
    is_encoder_decoder: bool


def find_folders(model: Path, heads: Path | None) -> ModelFolders:
    """The folders of a model and its heads; see `lattice_bpd.cli.files.check_model`.

    Raises:
        ValueError: also where a model has no heads of its own, and none are given.
    """
    check_model(model)
    from lattice_bpd.models.checkpoint import has_heads, head_names

    if heads is None and not has_heads(model):
        raise ValueError(
            f"{model} has no draft heads ({', '.join(head_names())}); give --heads DIR, or a "
            "folder that `lattice-bpd heads train` wrote without --heads-only"
        )
    return ModelFolders(model, heads, has_encoder_decoder(model))


def find_tokenizer(args: argparse.Namespace) -> Path:
    """--tokenizer; or the model's tokenizer.json, or its folder with a tokenizer of other files."""
    own: Path = args.model / "tokenizer.json"
    return args.tokenizer or (own if own.is_file() else args.model)


def load_folders(folders: ModelFolders) -> Any:
    """A blockwise model, or an encoder-decoder and its heads; on the GPU if there is one.

    Returns:
        A BlockwiseLM, or the DraftingModel of an encoder-decoder.
    """
    import torch

    from lattice_bpd.cli.progress import quiet_transformers
    from lattice_bpd_kim2024.blockwise import BlockwiseLM

    quiet_transformers()
    torch.set_num_threads(min(torch.get_num_threads(), 4))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if folders.is_encoder_decoder:
        return _load_encoder_decoder(folders.model, folders.heads or folders.model, device)
    model = BlockwiseLM.from_pretrained(folders.model, folders.heads, attn_implementation="eager")
    return model.to(device)


def is_encoder_decoder(model: Any) -> bool:
    """Whether `load_folders` has loaded an encoder-decoder."""
    from lattice_bpd.decode.state.model import DraftingModel

    return isinstance(model, DraftingModel)


def _load_encoder_decoder(directory: Path, heads_directory: Path, device: str) -> DraftingModel:
    """The encoder-decoder of a folder, and the heads of one."""
    from safetensors import SafetensorError
    from transformers import AutoModelForSeq2SeqLM

    from lattice_bpd import FormatError
    from lattice_bpd.decode.state.model import DraftingModel
    from lattice_bpd.models import load_heads

    try:
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise FormatError(
            f"{directory}: the encoder-decoder cannot be read ({error}); expected the files that "
            "save_pretrained wrote"
        ) from error
    return DraftingModel(model.eval().to(device), load_heads(heads_directory))


def check_vocabularies(
    lms: Mapping[str, NGramLM | NeuralScorer], vocab_size: int, option: str = "--lm"
) -> None:
    """Refuse LMs of another tokenizer than the target's."""
    for name, lm in lms.items():
        check_same_ids(f"{option} {name}", "LM", lm.vocab_size, vocab_size)


def name_files(values: Sequence[str], option: str) -> dict[str, Path]:
    """Paths by name, from "FILE" or "NAME=FILE"; the default name is the file's, without suffix."""
    files: dict[str, Path] = {}
    for value in values:
        name, separator, file = value.partition("=")
        if not separator or Path(value).exists():
            name, file = Path(value).stem, value
        if name in files:
            raise ValueError(f"{option}: {name} twice; name one of them: {option} OTHER={file}")
        files[name] = Path(file)
    return files


def load_lms(values: Sequence[str], option: str = "--lm") -> dict[str, NGramLM]:
    """LMs by name; see `name_files`."""
    from lattice_bpd import NGramLM

    return {name: NGramLM.load(path) for name, path in name_files(values, option).items()}


def add_rescorer_option(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add --rescorer; `default` extends its help."""
    parser.add_argument(
        "--rescorer", action="append", default=[], metavar="[NAME=]DIR",
        help="small causal LM for strategies neural and mixture, the first is that of the main "
        f"table; repeatable{default}",
    )  # fmt: skip


def load_rescorers(values: Sequence[str], option: str = "--rescorer") -> dict[str, NeuralScorer]:
    """Rescorers by name, on the GPU if there is one; see `name_files`."""
    files = name_files(values, option)
    if not files:
        return {}
    import torch

    from lattice_bpd.cli.files import load_causal_lm
    from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer

    scorers = {}
    for name, path in files.items():
        model = load_causal_lm(path)
        model.to(torch.float32)  # type: ignore[arg-type]
        if torch.cuda.is_available():
            model.to("cuda")  # type: ignore[arg-type]
        scorers[name] = NeuralScorer(model)
    return scorers


def check_numbers(args: argparse.Namespace, least: int, *names: str) -> None:
    """Refuse options below `least`; None is allowed."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < least:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is {value}; expected {least} or more")


def parse_list(text: str, name: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Comma-separated numbers."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        word = "whole numbers" if kind is int else "numbers"
        raise ValueError(
            f"{name} is {text!r}; expected {word} between commas, such as 4,16"
        ) from None
