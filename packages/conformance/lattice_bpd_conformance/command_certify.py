"""`lattice-bpd certify`: checks a certificate by plain greedy decoding, or a server by another."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.options import add_code_option, add_command
from lattice_bpd.pretrained import Pretrained, find_pretrained

if TYPE_CHECKING:
    from lattice_bpd.cli.options import Commands
    from lattice_bpd.openai_server import OpenAIServer
    from lattice_bpd_conformance.servers import Answers, Prompt

_EXAMPLE = """examples:
  lattice-bpd generate MODEL --prompt 'def main(argv):' --certificate text.json
  lattice-bpd certify text.json --model MODEL
  lattice-bpd certify --server http://localhost:8001 --baseline http://localhost:8000 \\
      --prompts prompts.jsonl
  lattice-bpd certify --server http://localhost:8000 --prompts prompts.jsonl -o plain.json
  lattice-bpd certify --server http://localhost:8000 --prompts prompts.jsonl --baseline plain.json

FILE: the model's own generate writes all tokens again. Where it prefers another token by no more
than rounding explains, which calls of the model in other shapes measure anew, the text is a tie.

--server: any two servers with the OpenAI API, or one after the other, answer the same prompts at
temperature 0. Each difference is a near-tie or an error, by the baseline's log probabilities and
its noise: what changes when it gets the prompts again, with another number of requests at a time.
The exit status is 2 if there are errors.
"""


def add_parser(commands: Commands) -> None:
    """Add the command `certify`."""
    parser = add_command(
        commands, "certify", run, epilog=_EXAMPLE,
        summary="check a lossless certificate, or a server's texts",
        description="Decode a certificate's text again by plain greedy calls, and report the first "
        "token that differs; or compare the greedy texts of two servers.",
    )  # fmt: skip
    add = parser.add_argument
    add("file", nargs="?", type=Path, metavar="FILE", help="file that --certificate wrote")
    add("--model", help="the model that generated the text; with --server, the name that the "
        "servers know (default: the first that each lists)")  # fmt: skip
    add("--server", metavar="URL", help="address of the server to check")
    add("--baseline", metavar="URL|FILE", help="address of the server to compare with, or answers "
        "that -o wrote; without it, -o writes those of --server")  # fmt: skip
    add("--prompts", nargs="+", metavar="FILE", help="the first prompts of conversations, in the "
        "formats of build")  # fmt: skip
    add("--no-chat", action="store_true", help="prompts as they are, without the chat template")
    add("--max-tokens", type=int, metavar="N", help="of an answer (default 64)")
    add("--parallel", type=int, metavar="N", help="requests at a time (default 8)")
    add("-o", "--output", type=Path, metavar="FILE", help="JSON file of the comparison or answers")
    add_code_option(parser)


_OF_SERVERS = ("baseline", "prompts", "no_chat", "max_tokens", "parallel", "output")


def run(args: argparse.Namespace) -> None:
    """Check and print.

    Raises:
        ValueError: the text is not the greedy output, the model has another vocabulary, a server's
            texts have errors, or arguments that do not fit together.
        FormatError: the file is not a certificate or of answers, or prompts of another format.
        OSError: a file cannot be read, or a server does not answer.
    """
    if (args.file is None) == (args.server is None):
        raise ValueError("certify: expected a certificate FILE and --model, or --server URL")
    if args.server is not None:
        _compare_servers(args)
        return
    given = [name for name in _OF_SERVERS if getattr(args, name) not in (None, False)]
    if given:
        raise ValueError(f"certify: --{given[0].replace('_', '-')} is for --server, not for FILE")
    if args.model is None:
        raise ValueError("certify: expected --model, the model that generated the text")
    _check_file(args.file, find_pretrained(args.model, args.trust_remote_code))


def _check_file(file: Path, found: Pretrained) -> None:
    from lattice_bpd.cli.progress import quiet_transformers

    quiet_transformers()
    import torch

    from lattice_bpd.cli.files import load_causal_lm
    from lattice_bpd.decode import Certificate, DraftingModel
    from lattice_bpd.decode.certificate.noise import follow_text
    from lattice_bpd.token_ids import to_token_ids

    certificate = Certificate.load(file)
    dtype = getattr(torch, certificate.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{file}: dtype is {certificate.dtype!r}; expected one of torch's")
    base: Any = load_causal_lm(found)
    model = DraftingModel(base.to(dtype))
    prompt, token_ids = certificate.prompt_token_ids, certificate.token_ids
    for name, ids in (("prompt_token_ids", prompt), ("token_ids", token_ids)):
        if not ids:
            raise ValueError(f"certificate: {name} is empty; expected one token or more")
        to_token_ids(ids, f"certificate: {name}", model.vocab_size)
    choices, noise = follow_text(model.target, prompt, token_ids)
    count = len(token_ids)
    if not choices.differing:
        print(f"lossless: plain greedy calls give all {count} tokens of {file}")
        return
    index = min(choices.differing, key=lambda position: choices.margins[position])
    where = (
        f"{file}: plain greedy calls give other tokens at {len(choices.differing)} of {count} "
        f"positions; at position {index} they prefer another one by {-choices.margins[index]:.3g}, "
        f"and rounding explains {noise.margin_bound:.3g}"
    )
    if -choices.margins[index] > noise.margin_bound:
        raise ValueError(f"{where}; expected the same token: another model, or an altered text")
    print(f"tie: {where}")


def _compare_servers(args: argparse.Namespace) -> None:
    """Refuses what it can before a server answers all prompts, which takes minutes."""
    from lattice_bpd.atomic_files import write_json
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.openai_server import OpenAIServer
    from lattice_bpd_conformance.servers import (
        check_baseline,
        compare_answers,
        find_logprobs,
        read_answers,
    )

    if not args.prompts:
        raise ValueError("certify: --server needs prompts; expected --prompts FILE")
    max_tokens = 64 if args.max_tokens is None else args.max_tokens
    parallel = 8 if args.parallel is None else args.parallel
    if max_tokens < 1 or parallel < 1:
        raise ValueError(
            f"certify: --max-tokens is {max_tokens}, --parallel {parallel}; expected 1 or more"
        )
    if args.output is not None:
        check_output(args.output, takes_devices=True)
    elif args.baseline is None:
        raise ValueError(
            "certify: nothing to compare with; expected --baseline URL, or -o FILE to keep the "
            "server's answers as a baseline"
        )
    prompts = _read_prompts(args)
    baseline, urls = None, [args.server]
    if (args.baseline or "").startswith(("http://", "https://")):
        urls.append(args.baseline)
    elif args.baseline is not None:
        baseline = read_answers(Path(args.baseline))
        check_baseline(baseline, prompts, max_tokens)
    servers = [OpenAIServer(url, args.model) for url in urls]
    logprobs = [find_logprobs(one, prompts[0]) for one in servers]
    collect = partial(_collect, prompts=prompts, max_tokens=max_tokens, parallel=parallel)
    if len(servers) > 1:
        baseline = collect(servers[1], logprobs=logprobs[1], twice=True)
    answers = collect(servers[0], logprobs=logprobs[0], twice=baseline is None)
    if baseline is None:
        write_json(args.output, answers.to_dict())
        print(f"{args.output}: answers to {len(answers.first)} prompts, for --baseline")
        return
    report = compare_answers(answers, baseline)
    print(report.describe())
    if args.output is not None:
        write_json(args.output, report.to_dict())
    if errors := report.answers.count("error"):
        raise ValueError(
            f"{args.server}: {errors} of {report.answers.texts} texts have errors, tokens that "
            "rounding does not explain; expected those of the baseline"
        )


def _read_prompts(args: argparse.Namespace) -> list[Prompt]:
    from lattice_bpd.train.responses.prompts import join_texts, read_chats

    prompts: list[Prompt] = []
    for file in args.prompts:
        for chat in read_chats(file):
            messages = chat.messages[: chat.prompt_ends()[0]]
            prompts.append(join_texts(messages) if args.no_chat else messages)
    return prompts


def _collect(server: OpenAIServer, **options: Any) -> Answers:
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd_conformance.servers import collect_answers

    watcher = ConsoleWatcher(make_console(), {})
    try:
        return collect_answers(server, watcher=watcher, **options)
    finally:
        watcher.close()
