"""`lattice-bpd rescore`: n-best lists and lattices in, in new order out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.files import check_output
from lattice_bpd.cli.options import add_command, add_options, pick
from lattice_bpd_recognition.lattice import (
    Lattice,
    LatticeError,
    RescoredLattice,
    rescore_lattice,
    rescore_lattices,
)
from lattice_bpd_recognition.lattice_files import (
    FORMATS,
    guess_format,
    read_lattices,
    read_symbols,
    write_fst,
    write_kaldi,
)
from lattice_bpd_recognition.nbest import rescore_nbest, word_scorer
from lattice_bpd_recognition.nbest_files import NbestList, read_nbest, read_references
from lattice_bpd_recognition.normalize import add_normal_options, normalizer_of

if TYPE_CHECKING:
    from lattice_bpd.cli.options import Commands
    from lattice_bpd.lm.ngram import NGramLM

_EXAMPLE = """examples:
  lattice-bpd rescore nbest.jsonl --lm words.lm --tune references.txt
  lattice-bpd rescore nbest.jsonl --lm words.lm --alpha 0.6 --beta 0.3 -o rescored.jsonl
  lattice-bpd rescore words.txt --acoustic-costs ac.txt --lm words.lm --alpha 0.5
  lattice-bpd rescore lattices.txt --lm words.lm --alpha 0.5 --num-paths 10 -o nbest.jsonl
  lattice-bpd rescore lattices.txt --lm words.lm --alpha 0.5 --lattices kaldi -o rescored.txt

n-best lists are JSON lines, {"id": "u1", "hypotheses": [{"text": "a b", "score": -3.2}, ..]}, or
Kaldi's text of nbest-to-linear; the output is the same in new order. Lattices are Kaldi's text,
HTK's SLF or OpenFst's; the output is JSON lines of the best word sequences.
"""
_SCORING = ("bos", "eos")
_NBEST, _LATTICE = "n-best lists", "lattices"


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands, "rescore", run, epilog=_EXAMPLE,
        summary="rescore n-best lists and word lattices by an n-gram LM",
        description="Sort what a decoder of speech or text recognized by score + alpha * ln P + "
        "beta * words.",
    )  # fmt: skip
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT", help="lists or lattices")
    parser.add_argument(
        "--lm", type=Path, required=True, metavar="LM", help="LM file with words, or ARPA text"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: standard output"
    )
    parser.add_argument("--format", choices=FORMATS, help="of lattices (default: by first bytes)")
    add_options(
        parser, rescore_nbest, ("alpha", "beta", *_SCORING, "threads"),
        alpha={"help": "weight of the LM's natural log probability (needed without --tune)",
               "default": None},
        bos={"help": "no <s> before a text"}, eos={"help": "do not score </s>"},
    )  # fmt: skip
    parser.add_argument(
        "--tune", type=Path, metavar="REFERENCES",
        help='find alpha and beta on these: {"id": .., "text": ..} or "ID WORD .." on each line; '
        "the word error rates go to standard error, and -o gets the lists with these weights",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what --tune found as JSON")
    add_normal_options(parser)
    kaldi = parser.add_argument_group(_NBEST + " of Kaldi")
    add_options(kaldi, read_nbest, ("graph_costs", "acoustic_costs"),
                graph_costs={"type": Path, "metavar": "FILE"},
                acoustic_costs={"type": Path, "metavar": "FILE"})  # fmt: skip
    group = parser.add_argument_group(_LATTICE)
    add_options(group, rescore_lattice, ("acoustic_scale", "graph_scale", "num_paths"))
    group.add_argument("--symbols", type=Path, metavar="FILE", help="symbol table of the labels")
    group.add_argument(
        "--lattices", choices=("kaldi", "openfst"), metavar="FORMAT",
        help="write lattices with the LM's scores instead of sequences: kaldi or openfst",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Rescores and writes.

    Raises:
        ValueError: bad input or options, or lattices that could not be searched (all others are
            written).
        OSError: a file that cannot be read or written.
        ImportError: --tune without jiwer.
    """
    from lattice_bpd_recognition.kenlm_interface import read_word_lm

    for path in (args.output, args.json):
        if path is not None:
            check_output(path)
    if args.tune is None and args.alpha is None:
        raise ValueError("rescore: expected --alpha, or --tune REFERENCES, which finds it")
    if args.tune is not None and args.alpha is not None:
        raise ValueError("rescore: both --alpha and --tune; expected one of them")
    lm = read_word_lm(args.lm, need_words=False)  # n-best lists may have token ids
    if any(args.format or _is_lattice(path) for path in args.inputs):
        if args.tune is not None:
            raise ValueError(
                "rescore: --tune needs n-best lists; make some with --alpha 0 --num-paths 100"
            )
        _run_lattices(args, lm)
    else:
        _run_nbest(args, lm)


def _is_lattice(path: Path) -> bool:
    try:
        return guess_format(path) is not None
    except (OSError, ValueError):  # which reading it tells
        return False


def _run_nbest(args: argparse.Namespace, lm: Any) -> None:
    if args.lattices is not None or args.symbols is not None:
        raise ValueError("rescore: --lattices and --symbols are of lattices, not n-best lists")
    costs = pick(args, ("graph_costs", "acoustic_costs", "acoustic_scale"))
    lists = [one for path in args.inputs for one in read_nbest(path, **costs)]
    options = {**pick(args, (*_SCORING, "threads")), "normalize": normalizer_of(args)}
    alpha, beta = args.alpha, args.beta
    if args.tune is not None:
        alpha, beta = _tune(args, lists, lm, options)
        if args.output is None:
            return
    results = rescore_nbest([one.hypotheses for one in lists], lm, alpha, beta, **options)
    orders = ([row.index for row in rows] for rows in results)
    texts = (
        one.reordered(order)
        for one, order in zip(lists, orders, strict=True)
        if order or one.record
    )
    _write(args.output, (f"{text}\n" for text in texts))


def _tune(
    args: argparse.Namespace, lists: list[NbestList], lm: Any, options: dict[str, Any]
) -> tuple[float, float]:
    from lattice_bpd.atomic_files import write_json
    from lattice_bpd_recognition.tuning import tune_weights

    references = read_references(args.tune)
    known = [one for one in lists if one.utterance in references and one.hypotheses]
    if not known:
        raise ValueError(
            f"{args.tune}: no utterance of the lists is in it; its first is "
            f"{next(iter(references), 'missing')!r}, that of the lists "
            f"{lists[0].utterance if lists else 'missing'!r}"
        )
    if len(known) < len(lists):
        print(
            f"lattice-bpd: note: {len(lists) - len(known)} of {len(lists)} utterances have no "
            "reference or no hypotheses and are left out of --tune",
            file=sys.stderr,
        )
    hypotheses = [one.hypotheses for one in known]
    if any(not isinstance(text, str) for one in hypotheses for text, _ in one):
        raise ValueError("rescore: --tune with texts of token ids; expected words")
    found = tune_weights(hypotheses, [references[one.utterance] for one in known], lm, **options)
    print("\n".join(found.lines()), file=sys.stderr)
    if args.json is not None:
        write_json(args.json, found.to_json())
    return found.alpha, found.beta


def _read_all(args: argparse.Namespace) -> Iterator[Lattice | LatticeError]:
    """The lattices of all files; a file that cannot be read does not stop the others."""
    symbols = None if args.symbols is None else read_symbols(args.symbols)
    for path in args.inputs:
        try:
            yield from read_lattices(path, args.format, symbols=symbols)
        except (OSError, ValueError) as error:
            yield LatticeError(str(error))


def _run_lattices(args: argparse.Namespace, lm: Any) -> None:
    for name in ("graph_costs", "acoustic_costs"):
        if getattr(args, name) is not None:
            raise ValueError(f"rescore: --{name.replace('_', '-')} is of Kaldi's n-best text")
    options = pick(args, (*_SCORING, "num_paths", "acoustic_scale", "graph_scale"))
    results = rescore_lattices(
        _read_all(args), lm, args.alpha, args.beta,
        threads=args.threads, normalize=normalizer_of(args),
        rescored=args.lattices is not None, **options,
    )  # fmt: skip
    failed: list[str] = []

    def texts() -> Iterator[str]:
        write: Callable[[Any], str] = write_fst if args.lattices == "openfst" else write_kaldi
        is_checked = False
        for lattice, result in results:
            if lattice is not None and lattice.words and not is_checked:
                is_checked = True
                _warn_of_unknown(lattice, lm, normalizer_of(args))
            if lattice is None or not isinstance(result, RescoredLattice):
                failed.append(str(result))
                print(f"lattice-bpd: error: {result}", file=sys.stderr)
            elif result.lattice is not None:
                yield write(result.lattice)
            else:
                yield _to_json(lattice.utterance, result)

    _write(args.output, texts())
    if failed:
        raise ValueError(
            f"rescore: {len(failed)} lattices could not be searched (above); all others are written"
        )


def _warn_of_unknown(lattice: Lattice, lm: NGramLM, normalize: Callable[[str], str]) -> None:
    """Prints a note if the LM has no word of the lattice."""
    scorer = word_scorer("rescore", lm, words=True)
    if not any(scorer.contains(normalize(word)) for word in lattice.words):
        print(
            f"lattice-bpd: note: {lattice.location()}: no word is in the LM, such as "
            f"{lattice.words[0]!r}; are they numbers of a table (--symbols), or of another case "
            "(--lowercase)?",
            file=sys.stderr,
        )


def _to_json(utterance: str, result: RescoredLattice) -> str:
    rows = [
        {
            "text": path.text, "score": path.total, "graph_cost": path.graph_cost,
            "acoustic_cost": path.acoustic_cost, "log_prob": path.log_prob,
        }
        for path in result.paths
    ]  # fmt: skip
    return json.dumps({"id": utterance, "hypotheses": rows}, ensure_ascii=False) + "\n"


def _write(path: Path | None, texts: Iterator[str]) -> None:
    from lattice_bpd.atomic_files import replacing

    if path is None:
        for text in texts:
            sys.stdout.write(text)
        return
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(text)
