"""`lattice-bpd generate`: decode a prompt with a causal LM and print statistics."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.arguments import check_int
from lattice_bpd.cli import files
from lattice_bpd.cli.options import (
    add_code_option,
    add_command,
    add_draft_options,
    add_heads_option,
    list_strategies,
    pick,
    read_draft_options,
)
from lattice_bpd.draft.config import STRATEGIES, DraftConfig, find_drafter_file
from lattice_bpd.extensions import CONSTRAINTS, load_extension, require
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.pretrained import Pretrained, find_pretrained
from lattice_bpd.vocabulary import check_same_ids

if TYPE_CHECKING:
    from lattice_bpd.build.live import PlainResult
    from lattice_bpd.cli.options import Commands
    from lattice_bpd.decode import Certificate, DecodeResult, DecodeStats
    from lattice_bpd.verify import Acceptance

_EPILOG = f"""examples:
  lattice-bpd generate MODEL --drafter my-drafter --chat 'Write a poem about bees' --compare
  lattice-bpd generate MODEL --prompt 'def main(argv):'

strategies:
{list_strategies()}

Block efficiency is decoded tokens / calls of the target; the exact token of each call counts.
Rules of --accept: exact, top_k:K, specdec++:BETA,TAU, typical:EPSILON,DELTA. To sample:
sampled:TEMPERATURE[,top_p=P][,top_k=K][,min_p=P][,seed=N], or rejection:.. with the same options
and lenience=L for --strategy sampled and draft_model. The output says whether the rule is lossy.
"""
_OPTIONS = (
    "sources", "top_k", "num_drafts", "max_nodes", "alpha", "temperature",
    "draft_length",
)  # fmt: skip
_STATS = (
    "block_efficiency", "target_calls", "tokens", "tokens_per_second", "accept_lengths",
    "relaxed_tokens", "regret", "draft_failures", "seconds",
)  # fmt: skip
_TOKENS, _CHAT_TOKENS = 64, 256
_ACCEPTED, _OWN = "green", "bold yellow"


def add_parser(commands: Commands) -> None:
    """Add the command `generate`."""
    parser = add_command(
        commands, "generate", run, epilog=_EPILOG,
        summary="decode a prompt with any causal LM, with or without draft heads",
        description="Decode a prompt. Every strategy generates the target model's greedy output,\n"
        "unless --accept, --regex or --json-schema changes it. The default strategy drafts from\n"
        "all that there is: heads, LM and the text so far; with a causal LM as --lm it is\n"
        "draft_model.",
    )  # fmt: skip
    parser.add_argument(
        "model", metavar="MODEL",
        help="directory or hub name (OWNER/NAME, OWNER/NAME@REVISION) of a causal LM of "
        "transformers; draft heads are in the same directory, where there are any",
    )  # fmt: skip
    add_code_option(parser)
    add_heads_option(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="text to continue")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="the same, from a file")
    parser.add_argument(
        "--chat", nargs="?", const=True, metavar="TEXT",
        help="message of a chat, instead of --prompt: MODEL's chat template is applied to it; "
        "without TEXT to --prompt or --prompt-file",
    )  # fmt: skip
    parser.add_argument(
        "--lm", type=Path,
        help="n-gram LM (default: MODEL/ngram.lm, if it exists); 'none' for none; for neural "
        "also the directory, for draft_model the directory or hub name, of a small causal LM "
        "with the same tokenizer",
    )  # fmt: skip
    parser.add_argument(
        "--drafter", type=Path, metavar="PATH",
        help="folder of `lattice-bpd build`, or a drafter.json: strategy, options, LM and, where "
        "they are in the same folder, heads; --lm replaces the LM, not those of a mixture",
    )  # fmt: skip
    add_draft_options(parser, _OPTIONS)
    parser.add_argument(
        "--accept", default="exact", metavar="RULE", help="which draft tokens are kept (see below)"
    )
    constraint = parser.add_mutually_exclusive_group()
    constraint.add_argument("--regex", help="regular expression that the whole output must match")
    constraint.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="JSON schema of the output"
    )
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE",
        help="write every token's margin, and check by plain calls where rounding could decide",
    )  # fmt: skip
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="default 64, with --chat 256"
    )
    parser.add_argument(
        "--compare", action="store_true", help="decode twice, and by model.generate: print the "
        "tokens/s of both",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> None:
    """Decode and print.

    Raises:
        ValueError: options or files that do not fit together.
        OSError: a file that cannot be read.
    """
    from lattice_bpd.cli.progress import quiet_transformers

    prompt, found, config = _check_inputs(args)
    if args.drafter is not None:
        _read_drafter(args)
    quiet_transformers()
    tokenizer = found.load_tokenizer()
    decode = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if args.chat:
        ids = _encode_chat(prompt, tokenizer)
    else:
        ids = list(tokenizer(prompt)["input_ids"])
    if not ids:
        given = "--chat" if isinstance(args.chat, str) else "the prompt"
        raise ValueError(f"{given} is empty; expected text to continue")
    lm = _load_lm(args, found.folder)
    from lattice_bpd.decode import load_drafter
    from lattice_bpd.models.checkpoint import find_stop_tokens, has_heads, load_heads
    from lattice_bpd.verify import parse_acceptance

    rule = parse_acceptance(args.accept)
    is_given = args.heads is not None
    heads = load_heads(args.heads or found.folder) if is_given or has_heads(found.folder) else None
    model = files.to_device(files.load_causal_lm(found))
    vocab_size = int(model.config.get_text_config().vocab_size)
    if isinstance(lm, NGramLM):
        name = str(args.lm or found.folder / "ngram.lm")
        check_same_ids(f"generate: {name}", "LM", lm.vocab_size, vocab_size)
    ends = find_stop_tokens(model, tokenizer)
    drafter = None if args.drafter is None else load_drafter(args.drafter, lm)
    constraint = _load_constraint(args, tokenizer, vocab_size, ends)
    result, plain = _decode(
        args, model, ids, drafter or config, heads=heads, lm=lm if drafter is None else None,
        max_new_tokens=args.max_new_tokens, stop_token_ids=ends, acceptance=rule,
        constraint=constraint, certificate="report" if args.certificate is not None else False,
    )  # fmt: skip
    text = decode(result.token_ids)
    if result.certificate is not None:
        result.certificate.save(args.certificate)
    if args.json:
        print(_as_json(text, args.strategy, str(rule), result, plain))
    else:
        _print_text("" if args.chat else prompt, text, decode, result)
        print(_describe(result) + describe_rule(rule, result.stats))
        if plain is not None:
            print(_describe_plain(result, plain))
        if result.certificate is not None:
            print(describe_certificate(result.certificate, args.certificate))


def _check_inputs(args: argparse.Namespace) -> tuple[str, Pretrained, DraftConfig | None]:
    """The prompt, the model, and options without --drafter; checked before torch loads."""
    prompt, config = _read_prompt(args), None
    if args.max_new_tokens is None:
        args.max_new_tokens = _CHAT_TOKENS if args.chat else _TOKENS
    check_int("--max-new-tokens", args.max_new_tokens, 1)
    if args.certificate is not None:
        files.check_output(args.certificate, takes_devices=True)
    if args.compare and (args.accept, args.regex, args.json_schema) != ("exact", None, None):
        raise ValueError(
            "--compare: with --accept, --regex or --json-schema the text is not that of "
            "model.generate; expected none of them"
        )
    lm = None if args.strategy == "draft_model" else args.lm  # a draft model may be on the hub
    for path in (args.drafter, lm, args.json_schema):
        if path is not None and str(path) != "none" and not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder; check the path")
    if args.drafter is None:
        if args.strategy is None:
            is_model = args.lm is not None and (args.lm / "config.json").is_file()
            args.strategy = "draft_model" if is_model else DraftConfig.strategy
        config = read_draft_options("generate", args, _OPTIONS)
        _check_lm(args)
    else:
        find_drafter_file(args.drafter)
    found = find_pretrained(args.model, args.trust_remote_code)
    files.check_model(found.folder)
    return prompt, found, config


def _read_prompt(args: argparse.Namespace) -> str:
    """The text of --prompt, --prompt-file or --chat."""
    is_message = isinstance(args.chat, str)
    given = [args.prompt is not None, args.prompt_file is not None, is_message]
    if sum(given) != 1:
        raise ValueError(
            f"generate: found {'no prompt' if not any(given) else 'two prompts'}; expected one of "
            "--prompt TEXT, --prompt-file FILE and --chat TEXT"
        )
    if args.prompt_file is not None:
        return files.read_filled(args.prompt_file)
    text = args.chat if is_message else args.prompt
    return files.check_argument(text, "--chat" if is_message else "--prompt")


def _encode_chat(message: str, tokenizer: Any) -> list[int]:
    """Token ids of a chat of one message, by the template of a model's tokenizer."""
    from lattice_bpd.train.responses.formats import Chat
    from lattice_bpd.train.responses.prompts import encode_prompt

    if not tokenizer.chat_template:
        raise ValueError("--chat: the model has no chat template; give the text as --prompt")
    return encode_prompt(tokenizer, Chat([{"role": "user", "content": message}], "--chat"))


def _decode(
    args: argparse.Namespace, model: Any, ids: list[int], drafter: Any, **options: Any
) -> tuple[DecodeResult, PlainResult | None]:
    """The result, and with --compare that of the model's own `generate`."""
    from lattice_bpd.decode import generate

    result: Any = generate(model, ids, drafter, **options)
    if not args.compare:
        return result, None
    from lattice_bpd.build.live import generate_plainly

    limit, stops = options["max_new_tokens"], options["stop_token_ids"]
    generate_plainly(model, ids, limit, stops)  # first calls are slow
    return generate(model, ids, drafter, **options), generate_plainly(model, ids, limit, stops)


def _read_drafter(args: argparse.Namespace) -> None:
    """Sets --strategy, and --heads if it is not given, to those of --drafter.

    Raises:
        ValueError: options that the file has, or an LM where it uses none.
    """
    require("torch", "torch")
    from lattice_bpd.decode.drafter_file import read_drafter_file
    from lattice_bpd.models.checkpoint import has_heads

    path = find_drafter_file(args.drafter)
    file = read_drafter_file(path)
    options = pick(args, ("strategy", *_OPTIONS))
    given = [name for name, value in options.items() if value is not None]
    if args.lm is not None and (file.lm is None or str(args.lm) == "none"):
        given.append("lm")
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(
            f"generate: {names} with --drafter; expected one of them, since {path} has strategy "
            f"{file.config.strategy!r} with its options{'' if file.lm is None else ' and its LM'}"
        )
    args.strategy = file.config.strategy
    _check_lm(args)
    if args.heads is None and has_heads(path.parent):
        args.heads = path.parent


def _load_lm(args: argparse.Namespace, directory: Path) -> Any:
    """The LM of --lm, an n-gram LM or a causal LM; without --lm that of the model's directory."""
    if isinstance(args.lm, Pretrained):
        return files.to_device(files.load_causal_lm(args.lm))
    path = args.lm or directory / "ngram.lm"
    if args.lm is None:  # load_drafter finds its own
        is_used = args.strategy != "draft_model" and STRATEGIES[args.strategy].uses("lm")
        return NGramLM.load(path) if args.drafter is None and is_used and path.exists() else None
    return None if str(path) == "none" else NGramLM.load(path)


def _check_lm(args: argparse.Namespace) -> None:
    """Finds the causal LM of --lm; raises ValueError for an --lm that the strategy does not use."""
    if args.lm is None or str(args.lm) == "none":
        return
    if not STRATEGIES[args.strategy].uses("lm"):
        raise ValueError(
            f"--lm: strategy {args.strategy!r} does not use an LM; leave --lm out, or use 'mixture'"
        )
    if args.lm.is_dir() and args.strategy not in ("draft_model", "neural"):
        raise ValueError(
            f"--lm: {args.lm} is a directory; expected the file of an n-gram LM for strategy "
            f"{args.strategy!r}; a causal LM is for 'draft_model' and 'neural'"
        )
    if args.lm.is_dir() or args.strategy == "draft_model":
        args.lm = find_pretrained(args.lm, args.trust_remote_code)
        files.require_model(args.lm.folder, "--lm ")


def _load_constraint(
    args: argparse.Namespace, tokenizer: Any, vocab_size: int, ends: frozenset[int]
) -> Any:
    """The constraint of --regex or --json-schema; None for neither."""
    if args.regex is None and args.json_schema is None:
        return None
    name = "regex" if args.json_schema is None else "json-schema"
    if not ends:
        raise ValueError(
            f"--{name}: {args.model} names no token that ends a text, which a constraint needs; "
            "expected eos_token_id in its generation_config.json, or eos_token in the tokenizer's "
            "tokenizer_config.json; add one of them"
        )
    if args.regex is None:
        text = files.read_filled(args.json_schema)
    else:
        text = files.check_argument(args.regex, "--regex")
    make = load_extension(CONSTRAINTS, name)
    return make(text, tokenizer, vocab_size=vocab_size, end_token_ids=ends)


def _print_text(prompt: str, text: str, decode: Any, result: DecodeResult) -> None:
    """Prompt and text; on a terminal the accepted draft tokens are green, the model's own bold."""
    if not sys.stdout.isatty():
        print(f"{prompt}{text}")
        return
    from lattice_bpd.cli.progress import make_console

    output = require("rich.text", "torch").Text.assemble((prompt, "dim"))
    known, end = "", 0
    for accepted in [0, *result.stats.accept_lengths]:
        for count, style in ((accepted, _ACCEPTED), (1, _OWN)):
            end += count
            whole = decode(result.token_ids[:end]).rstrip("\ufffd")  # whole characters
            output.append(whole[len(known) :], style)
            known = max(known, whole, key=len)
    output.append(text[len(known) :])
    make_console().print(output)


def _describe(result: DecodeResult) -> str:
    stats = result.stats
    stages = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in stats.seconds.items())
    return (
        "---\n"
        f"{stats.tokens} tokens in {stats.target_calls} calls of the target: block efficiency "
        f"{stats.block_efficiency:.2f} (exact tokens counted), "
        f"{stats.tokens_per_second:,.0f} tokens/s; ended by {result.finish}\n{stages}"
    )


def _describe_plain(result: DecodeResult, plain: PlainResult) -> str:
    """The rate of model.generate beside that of the drafter."""
    gain = result.stats.tokens_per_second / plain.tokens_per_second
    same = "the same text" if plain.token_ids == result.token_ids else "another text (a near-tie)"
    return (
        f"model.generate: {plain.tokens_per_second:,.0f} tokens/s, {same}; with drafts "
        f"{gain:.2f} times as fast"
    )


def describe_rule(rule: Acceptance, stats: DecodeStats) -> str:
    """The cost of a lossy rule, as a separate line; empty for a lossless rule."""
    if rule.lossless:
        return ""
    return (
        f"\nlossy ({rule}): {stats.relaxed_tokens} of {stats.tokens} tokens are not the target's "
        f"argmax ({stats.relaxed_share:.1%}); regret {stats.regret_per_token:.3f} nats a token"
    )


def describe_certificate(certificate: Certificate, path: Path) -> str:
    """The verdict of a certificate in one line."""
    return (
        f"certificate {path}: {certificate.verdict}; logits differ by up to "
        f"{certificate.difference:.3g} from those of the model's own generate (rounding: "
        f"{certificate.noise.logit_bound:.3g}), {len(certificate.differing)} of "
        f"{len(certificate.token_ids)} tokens differ"
    )


def _as_json(
    text: str, strategy: str, rule: str, result: DecodeResult, plain: PlainResult | None
) -> str:
    return json.dumps({
        "strategy": strategy, "text": text, "token_ids": result.token_ids, "finish": result.finish,
        "acceptance": rule, "lossless": result.lossless, **pick(result.stats, _STATS),
        "plain_tokens_per_second": None if plain is None else plain.tokens_per_second,
        "certificate": None if result.certificate is None else result.certificate.verdict,
    })  # fmt: skip
