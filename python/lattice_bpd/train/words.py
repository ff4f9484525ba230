"""Words of a corpus as a vocabulary: normal form, case, the most frequent ones."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from lattice_bpd.text_input import STANDARD_INPUT
from lattice_bpd.train.corpus import Corpus, StrPath, WordEncoder, split_words
from lattice_bpd.train.id_files import is_id_file
from lattice_bpd.train.text_files import Boundaries, Piece, read_pieces

NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD", "none")
UNKNOWN = "<unk>"


def text_normalizer(normal_form: str = "NFC", *, lowercase: bool = False) -> Callable[[str], str]:
    """A function from text to the form whose words are counted.

    Args:
        normal_form: Unicode normal form, one of NORMAL_FORMS; "none" leaves text as it is.
        lowercase: whether words are lower-cased, as Unicode does it.

    Raises:
        ValueError: an unknown normal form.
    """
    if normal_form not in NORMAL_FORMS:
        raise ValueError(
            f"normal_form is {normal_form!r}; expected one of {', '.join(NORMAL_FORMS)}"
        )

    def normalize(text: str) -> str:
        text = text.lower() if lowercase else text
        return text if normal_form == "none" else unicodedata.normalize(normal_form, text)  # type: ignore[arg-type]

    return normalize


def word_corpus(
    inputs: Sequence[StrPath],
    *,
    normal_form: str = "NFC",
    lowercase: bool = False,
    min_word_count: int = 1,
    vocab_size: int | None = None,
    boundaries: Boundaries = "line",
    field: str = "text",
) -> Corpus:
    """Counts the words of text, and opens it as a corpus of these words.

    Words are separated by ASCII white space. Token id 0 is ``<unk>``, which is also every word
    that is left out; the others follow by falling count. :func:`train_corpus` gives the LM its
    words.

    Args:
        inputs: files and folders of text, see Corpus; they are read twice.
        normal_form: Unicode normal form of the words: NFC, NFD, NFKC, NFKD or none.
        lowercase: lower-case the words.
        min_word_count: words that occur less often are ``<unk>``.
        vocab_size: number of words with ``<unk>``; rarer ones are ``<unk>``. None: all.
        boundaries: unit of text between <s> and </s>: "line", "paragraph" or "document".
        field: the .jsonl field with the text.

    Raises:
        OSError: a file cannot be read.
        FormatError: the content of a file is no text.
        ValueError: token ids or standard input, ``<s>`` or ``</s>`` in the text, no word that is
            frequent enough, or options out of range.
    """
    if min_word_count < 1 or (vocab_size is not None and vocab_size < 2):
        raise ValueError(
            f"min_word_count is {min_word_count}, vocab_size {vocab_size}; expected 1 and 2 at "
            "least"
        )
    normalize = text_normalizer(normal_form, lowercase=lowercase)
    encoder = WordEncoder([UNKNOWN], "the words of the corpus", normalize)
    corpus = Corpus(inputs, encoder, boundaries=boundaries, field=field, unk_id=0)
    counts: Counter[str] = Counter()
    for file in corpus.files:
        if file == STANDARD_INPUT or is_id_file(file):
            raise ValueError(
                f"{file}: words are counted in a first pass over text; expected files of text "
                "(write standard input to a file)"
            )
        for piece in read_pieces(file, boundaries, field):
            _count(piece, counts, normalize)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [word for word, count in ranked if count >= min_word_count]
    words = words[: None if vocab_size is None else vocab_size - 1]
    if not words:
        raise ValueError(
            f"no word occurs {min_word_count} times in {corpus.files[0]}; lower min_word_count"
        )
    corpus.encoder = WordEncoder([UNKNOWN, *words], encoder.name, normalize, of_corpus=True)
    corpus.size_of_vocabulary = len(words) + 1
    return corpus


def _count(piece: Piece, counts: Counter[str], normalize: Callable[[str], str]) -> None:
    words = Counter(split_words(normalize(piece.text)))
    for boundary in ("<s>", "</s>"):
        if boundary in words:
            line = piece.text.split(boundary)[0].count("\n")
            raise ValueError(
                f"{piece.location.file}, line {piece.location.line + line}: the word {boundary} "
                "in the text; expected text without it: training adds it around each sequence"
            )
    for name in (UNKNOWN, "<UNK>"):
        words.pop(name, None)
    counts.update(words)
