"""Options of commands for the form of words, as `ngram train --words` has them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from lattice_bpd.cli.options import add_options
from lattice_bpd.train.words import NORMAL_FORMS, text_normalizer, word_corpus

if TYPE_CHECKING:
    from lattice_bpd.cli.options import Parser


def add_normal_options(parser: Parser) -> None:
    """Adds --normal-form and --lowercase, for the text that the LM scores."""
    add_options(
        parser, word_corpus, ("normal_form", "lowercase"), normal_form={"choices": NORMAL_FORMS}
    )


def normalizer_of(args: argparse.Namespace) -> Callable[[str], str]:
    """What these options do to text."""
    return text_normalizer(args.normal_form, lowercase=args.lowercase)
