"""What the core computes, computed again slowly and plainly, for tests to compare with.

Nothing here calls lattice_bpd. The LM is a dict read from ARPA text; the p best drafts are found by
listing all paths and sorting them.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

Word = int | str  # a token id, or "<s>", "</s>", "<unk>"
Ngram = tuple[Word, ...]
Slot = tuple[Sequence[int], Sequence[float]]  # token ids and scores

LN10 = math.log(10.0)
NEVER = float(np.float32(-99.0) * np.float32(2.302585093))  # the value of log10 -99
UNSEEN = -1000.0


def to_grid(score: float) -> float:
    """The nearest multiple of 2**-24: the parts of a score, so that sums are exact."""
    return math.ldexp(float(np.rint(math.ldexp(score, 24))), -24)


@dataclass
class ArpaOracle:
    """A backoff LM by its definition: look up the n-gram, or pay the backoff and shorten."""

    order: int
    log_probs: dict[Ngram, float]
    backoffs: dict[Ngram, float]
    bos: Word = "<s>"
    eos: Word = "</s>"
    _known: dict[tuple[Ngram, Word], list[float]] = field(default_factory=dict)

    def parts(self, history: Ngram, word: Word) -> list[float]:
        """Natural logs of the backoffs paid and, last, of the probability found."""
        history = (
            history[len(history) - self.order + 1 :] if len(history) >= self.order else history
        )
        if (history, word) not in self._known:
            self._known[history, word] = self._find(history, word)
        return self._known[history, word]

    def _find(self, history: Ngram, word: Word) -> list[float]:
        paid = []
        for start in range(len(history) + 1):
            rest = history[start:]
            ngram = (*rest, word)
            if ngram in self.log_probs:
                return [*paid, self.log_probs[ngram]]
            paid.append(self.backoffs.get(rest, 0.0))
        unknown = UNSEEN if word != "</s>" else NEVER
        return [*paid[:-1], self.log_probs.get(("<unk>",), unknown)]

    def log_prob(self, history: Iterable[Word], word: Word) -> float:
        """ln P(word | history)."""
        return sum(self.parts(tuple(history), word))

    def history(self, context: Iterable[int], bos: bool = True) -> Ngram:
        """The context with <s> before it, unless it starts with that already."""
        words = tuple(int(token) for token in context)
        return (self.bos, *words) if bos and words[:1] != (self.bos,) else words


def read_arpa(text: str, ids: dict[str, int] | None = None) -> ArpaOracle:
    """Reads ARPA text: decimal token ids, or words that `ids` gives a token id.

    Special symbols that `ids` names ("<s>": 0) become token ids too.
    """
    ids = ids or {}
    lines = iter(text[text.index("\n\\data\\") :].splitlines())
    model = ArpaOracle(0, {}, {}, ids.get("<s>", "<s>"), ids.get("</s>", "</s>"))
    for line in lines:
        fields = line.split()
        if line.startswith("\\") and line.rstrip().endswith("-grams:"):
            model.order = int(line[1 : line.index("-")])
        elif model.order and fields and not line.startswith("\\"):
            ngram = tuple(_word(word, ids) for word in fields[1 : model.order + 1])
            model.log_probs[ngram] = _natural(fields[0])
            if len(fields) > model.order + 1:
                model.backoffs[ngram] = _natural(fields[-1])
    return model


def _word(word: str, ids: dict[str, int]) -> Word:
    word = "<unk>" if word == "<UNK>" else word
    return ids.get(word, int(word) if word.isdecimal() and not ids.get(word) else word)


def _natural(log10: str) -> float:
    return float(np.float32(float(log10) * LN10))


def list_all_drafts(
    slots: Sequence[Slot],
    lm: ArpaOracle | None,
    context: Iterable[int] = (),
    *,
    alpha: float = 1.0,
    bos: bool = True,
) -> list[tuple[tuple[int, ...], float]]:
    """Every path with its score: by falling score, then by token ids from left to right.

    A slot without any unmasked token ends all paths; there is none where that is the first.
    """
    history = lm.history(context, bos) if lm else ()
    kept = list(itertools.takewhile(bool, map(_keep_unmasked, slots)))
    paths = []
    for path in itertools.product(*kept) if kept else ():
        tokens = tuple(token for token, _ in path)
        score = sum(to_grid(z) for _, z in path)
        if lm:
            score += _lm_score(lm, history, tokens, alpha)
        paths.append((tokens, score))
    return sorted(paths, key=lambda path: (-path[1], path[0]))


def _keep_unmasked(slot: Slot) -> list[tuple[int, float]]:
    candidates = [(int(token), float(score)) for token, score in zip(*slot, strict=True)]
    return [c for c in candidates if c[1] > -math.inf]


def _lm_score(lm: ArpaOracle, history: Ngram, tokens: tuple[int, ...], alpha: float) -> float:
    words = history + tokens
    first = len(history)
    return sum(
        to_grid(alpha * part)
        for i in range(first, len(words))
        for part in lm.parts(words[:i], words[i])
    )


def top_k_slots(logits: np.ndarray, top_k: int) -> list[Slot]:
    """(H, V) float32 -> the k best tokens of each row by sorting, masked ones left out."""
    slots: list[Slot] = []
    for row in logits:
        ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))[:top_k]
        kept = [token for token in ranked if row[token] > -math.inf] or ranked
        slots.append((kept, [float(row[token]) for token in kept]))
    return slots


def random_arpa(
    rng: np.random.Generator,
    vocab_size: int,
    order: int,
    *,
    ngrams: int = 12,
    exact: bool = True,
    closed: bool = True,
) -> str:
    """ARPA text of a random backoff model, not normalized, which the search does not require.

    Args:
        rng: Source of randomness.
        vocab_size: V; about one token id in six is left out of the unigrams.
        order: n.
        ngrams: Number of sampled n-grams of each order; their histories are added.
        exact: Natural logs are multiples of 1/4, so that sums tie; else they are real numbers.
        closed: Every n-gram's suffix is in the model too, and backoff weights may exceed 1.
    """
    tokens = [t for t in range(vocab_size) if rng.random() < 5 / 6] or [0]
    known: set[tuple[str, ...]] = {("<s>",), ("</s>",), *((str(t),) for t in tokens)}
    for length in range(2, order + 1):
        for _ in range(ngrams):
            middle = [str(t) for t in rng.choice(tokens, length)]
            first = "<s>" if rng.random() < 0.25 else middle[0]
            last = "</s>" if rng.random() < 0.1 else middle[-1]
            _add_parts(known, (first, *middle[1:-1], last), closed)
    lines = ["", "\\data\\"]
    by_length = [[n for n in known if len(n) == m + 1] for m in range(order)]
    lines += [f"ngram {m + 1}={len(histories)}" for m, histories in enumerate(by_length)]
    for m, histories in enumerate(by_length):
        lines += ["", f"\\{m + 1}-grams:"]
        listed = sorted(histories)
        rng.shuffle(listed)
        lines += [_arpa_line(rng, tuple(ngram), m + 1 < order, exact, closed) for ngram in listed]
    return "\n".join([*lines, "", "\\end\\", ""])


def _add_parts(known: set[tuple[str, ...]], ngram: tuple[str, ...], closed: bool) -> None:
    for first in range(len(ngram) if closed else 1):
        for last in range(first + 1, len(ngram) + 1):
            known.add(ngram[first:last])


def _arpa_line(
    rng: np.random.Generator, ngram: tuple[str, ...], is_history: bool, exact: bool, closed: bool
) -> str:
    log_prob = rng.integers(-16, 1) / 4 if exact else -4 * rng.random()
    backoff = rng.integers(-8, 4 if closed else 1) / 4 if exact else -2 * rng.random()
    if ngram == ("<s>",):
        log_prob = -99 * LN10
    line = f"{log_prob / LN10!r}\t{' '.join(ngram)}".replace("np.float64(", "").replace(")", "")
    if is_history and ngram[-1] != "</s>" and rng.random() < 0.8:
        line += f"\t{float(backoff / LN10)!r}"
    return line
