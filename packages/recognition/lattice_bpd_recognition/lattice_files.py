"""Files of word lattices: OpenFst (binary and text), Kaldi's text lattices, HTK's SLF."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lattice_bpd import _core
from lattice_bpd.text_input import BOM, decode_text, read_chunks, read_text
from lattice_bpd.train.corpus import split_words
from lattice_bpd_recognition.lattice import EPSILON, Lattice, LatticeError

FORMATS = ("openfst", "kaldi", "htk")
NO_WORDS = ("<eps>", "<epsilon>", "!NULL", "!SENT_START", "!SENT_END", "<s>", "</s>", "-")
"""Labels of arcs without a word; the search scores ``</s>`` itself, at the end of a path."""

_FST_MAGIC = b"\xd6\xfd\xb2\x7e"


class _Arc(NamedTuple):
    source: Any
    target: Any
    word: str
    graph: float
    acoustic: float
    alignment: str
    line: int


class _Builder:
    """Collects what lines say of one lattice."""

    def __init__(self, file: str, utterance: str, line: int) -> None:
        self.file, self.utterance, self.line = file, utterance, line
        self.arcs: list[_Arc] = []
        self.finals: dict[Any, tuple[float, float, str]] = {}
        self.start: Any = None

    def fail(self, line: int | None, problem: str) -> LatticeError:
        """An error with file and line."""
        where = f"{self.file}, line {self.line if line is None else line}"
        name = f" (utterance {self.utterance})" if self.utterance else ""
        return LatticeError(f"{where}{name}: {problem}")

    def build(self, no_words: Sequence[str] = NO_WORDS, states: Iterable[Any] = ()) -> Lattice:
        """The lattice; its states are those of arcs and finals, and `states`."""
        names: dict[Any, int] = {}
        if self.start is not None:
            names[self.start] = 0
        for arc in self.arcs:
            names.setdefault(arc.source, len(names))
            names.setdefault(arc.target, len(names))
        for state in (*self.finals, *states):
            names.setdefault(state, len(names))
        if not names:
            raise self.fail(None, "the lattice is empty; expected arcs, or a final state")
        skipped = set(no_words)
        words = sorted({arc.word for arc in self.arcs} - skipped)
        ids = {word: i for i, word in enumerate(words)}
        final_graph, final_acoustic = (np.full(len(names), np.inf) for _ in range(2))
        final_alignments = [""] * len(names)
        for state, (graph, acoustic, alignment) in self.finals.items():
            at = names[state]
            final_graph[at], final_acoustic[at], final_alignments[at] = graph, acoustic, alignment
        alignments = [arc.alignment for arc in self.arcs]
        has_alignments = any(alignments) or any(final_alignments)
        return Lattice(
            words, 0,
            np.array([names[arc.source] for arc in self.arcs], np.int32),
            np.array([names[arc.target] for arc in self.arcs], np.int32),
            np.array([ids.get(arc.word, EPSILON) for arc in self.arcs], np.int32),
            np.array([arc.graph for arc in self.arcs], np.float64),
            np.array([arc.acoustic for arc in self.arcs], np.float64),
            final_graph, final_acoustic,
            alignments if has_alignments else None,
            final_alignments if has_alignments else None,
            self.utterance, [arc.line for arc in self.arcs] or [self.line], self.file, list(names),
        )  # fmt: skip


def read_symbols(path: str | Path) -> dict[int, str]:
    """The words of a symbol table: a line "WORD ID" each, as OpenFst and Kaldi write them.

    Raises:
        OSError: the file cannot be read.
        FormatError: a line of another form, or an id twice.
    """
    symbols: dict[int, str] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        fields = split_words(line)
        if not fields:
            continue
        if len(fields) != 2 or not fields[1].isdecimal() or int(fields[1]) in symbols:
            raise _core.FormatError(
                f"{path}, line {number}: {line[:80]!r}; expected a word and an id of its own"
            )
        symbols[int(fields[1])] = fields[0]
    return symbols


def guess_format(path: str | Path) -> str | None:
    """One of FORMATS, by the first bytes of a file; None where it is none of them."""
    head = next(read_chunks(str(path)), b"")[:4096] if not _is_binary(path) else _FST_MAGIC
    if head.startswith(_FST_MAGIC):
        return "openfst"
    text = head.removeprefix(BOM).decode("utf-8", "replace")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if lines and re.match(r"#|[A-Za-z]+=", lines[0]):
        return "htk"
    if lines and re.match(r"\d+\s+\d+(\s|$)", lines[0]):
        return "openfst"
    is_state = re.compile(r"\d+(\s|$)").match  # n-best lists have UTTERANCE-N there
    if lines and len(lines[0].split()) == 1 and any(map(is_state, lines[1:])):
        return "kaldi"
    return None


def _is_binary(path: str | Path) -> bool:
    with Path(path).open("rb") as file:
        return file.read(4) == _FST_MAGIC


def read_lattices(
    path: str | Path,
    kind: str | None = None,
    *,
    symbols: dict[int, str] | None = None,
) -> Iterator[Lattice | LatticeError]:
    """Reads the lattices of a file; those that are damaged are yielded as errors.

    Args:
        path: the file; text may be compressed by gzip or zstd.
        kind: one of FORMATS; None: by its first bytes.
        symbols: the word of each label of an OpenFst file, or of Kaldi's with numbers for words;
            see :func:`read_symbols`. None: those of the binary file, or labels are the words.

    Yields:
        Each lattice, or the error with file and line of one that is no lattice. OpenFst's and
        HTK's files have one.

    Raises:
        OSError: the file cannot be read.
        FormatError: it is of no such format.
    """
    kind = kind or guess_format(path)
    if kind not in FORMATS:
        raise _core.FormatError(
            f"{path}: not a lattice of OpenFst, Kaldi (text) or HTK (SLF); give its format, one of "
            f"{', '.join(FORMATS)}"
        )
    if kind == "openfst" and _is_binary(path):
        yield _or_error(_read_binary, path, symbols)
        return
    read = {"openfst": _read_fst, "htk": _read_slf, "kaldi": _read_kaldi}[kind]
    lines = list(_lines(path))
    for block in _blocks(lines) if kind == "kaldi" else [lines]:
        yield _or_error(_read_block, read, str(path), block, _names(symbols))


Line = tuple[int, str | _core.FormatError]
WordOf = Callable[[_Builder, int, str], str]


def _or_error(read: Callable[..., Lattice], *arguments: Any) -> Lattice | LatticeError:
    try:
        return read(*arguments)
    except LatticeError as error:
        return error


def _lines(path: str | Path) -> Iterator[Line]:
    """The lines of a file with their numbers; an error for one that is not UTF-8."""
    byte = 0
    for number, line in enumerate(b"".join(read_chunks(str(path))).split(b"\n"), 1):
        try:
            yield number, decode_text(line, str(path), byte, number)
        except _core.FormatError as error:
            yield number, error
        byte += len(line) + 1


def _read_block(
    read: Callable[[str, list[tuple[int, str]], WordOf], Lattice],
    file: str,
    block: list[Line],
    word_of: WordOf,
) -> Lattice:
    """The lattice of some lines."""
    lines = []
    for number, line in block:
        if not isinstance(line, str):
            raise LatticeError(str(line))
        lines.append((number, line))
    return read(file, lines, word_of)


def _names(symbols: dict[int, str] | None) -> WordOf:
    """The word of a label; with symbols a number, or one of their words."""
    words = set() if symbols is None else set(symbols.values())

    def word_of(builder: _Builder, line: int, label: str) -> str:
        if symbols is None or label == "0":
            return "<eps>" if label == "0" else label
        number = int(label) if label.isdecimal() else -1
        if number not in symbols and label in words:
            return label
        if number not in symbols:
            raise builder.fail(
                line, f"the label {label!r} is not in the symbol table; expected one of its "
                f"{len(symbols)} numbers"
            )  # fmt: skip
        return symbols[number]

    return word_of


def _number(builder: _Builder, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or value == -math.inf:
        raise builder.fail(line, f"{text!r} is no cost; expected a number")
    return value


def _state(builder: _Builder, line: int, text: str) -> int:
    if not text.isdecimal():
        raise builder.fail(line, f"{text!r} is no state; expected a number")
    return int(text)


def _read_binary(path: str | Path, symbols: dict[int, str] | None) -> Lattice:
    builder = _Builder(str(path), Path(path).stem, 1)
    try:
        start, names, *arrays, finals = _core.fst_arrays(Path(path).read_bytes())
    except _core.FormatError as error:
        raise LatticeError(f"{path}: the FST {error}") from None
    if symbols is None and names:
        symbols = {label: name.decode("utf-8", "replace") for label, name in names}
    word_of = _names(symbols)
    if start < 0:
        raise LatticeError(f"{path}: the lattice is empty; expected a start state")
    builder.start = start
    for source, target, _, label, weight in zip(*arrays, strict=True):
        if label < 0 or math.isnan(weight) or weight == -math.inf:
            raise LatticeError(
                f"{path}: the arc from state {source} to {target} has the label {label} and the "
                f"weight {weight}; expected a label of 0 or above and a cost"
            )
        word = word_of(builder, 1, str(label))
        builder.arcs.append(_Arc(int(source), int(target), word, float(weight), 0.0, "", 1))
    for state, weight in enumerate(finals):
        if weight != math.inf:
            builder.finals[state] = (float(weight), 0.0, "")
    return dataclasses.replace(builder.build(states=range(len(finals))), lines=())


def _read_fst(file: str, lines: list[tuple[int, str]], word_of: WordOf) -> Lattice:
    """AT&T text: "from to input [output] [weight]", "state [weight]"."""
    builder = _Builder(file, Path(file).name.split(".")[0], lines[0][0] if lines else 1)
    rows = [(number, split_words(line)) for number, line in lines if line.strip()]
    # An acceptor has one label an arc, a transducer two, with or without a weight: three fields
    # are an acceptor's, five a transducer's. Four are a transducer's, too, if the fourth is not
    # always a number, or if it is always the third: the same labels without a weight.
    widths = {len(fields) for _, fields in rows if len(fields) > 2}
    fours = [fields[2:] for _, fields in rows if len(fields) == 4]
    is_acceptor = 5 not in widths and (
        3 in widths or (all(_is_weight(b) for _, b in fours) and any(a != b for a, b in fours))
    )
    for number, fields in rows:
        if builder.start is None:
            builder.start = _state(builder, number, fields[0])
        state = _state(builder, number, fields[0])
        if len(fields) <= 2:
            weight = _number(builder, number, fields[1]) if len(fields) == 2 else 0.0
            builder.finals[state] = (weight, 0.0, "")
            continue
        labels = 1 if is_acceptor else 2
        if not labels + 2 <= len(fields) <= labels + 3:
            raise builder.fail(
                number, f"{len(fields)} fields; expected two states, {labels} labels and a weight"
            )
        weight = _number(builder, number, fields[-1]) if len(fields) == labels + 3 else 0.0
        word = word_of(builder, number, fields[1 + labels])
        target = _state(builder, number, fields[1])
        builder.arcs.append(_Arc(state, target, word, weight, 0.0, "", number))
    return builder.build()


def _is_weight(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _blocks(lines: list[Line]) -> Iterator[list[Line]]:
    """The lines of each utterance, which empty lines separate; of an empty file its first."""
    block: list[Line] = []
    found = False
    for number, line in lines:
        if not isinstance(line, str) or line.strip():
            block.append((number, line))
        elif block:
            yield block
            found, block = True, []
    if block or not found:
        yield block or lines[:1]


def _read_kaldi(file: str, lines: list[tuple[int, str]], word_of: WordOf) -> Lattice:
    """Kaldi's text: the name, then "from to word graph,acoustic[,alignment]" and finals.

    A Lattice that is not compact has two labels: the word is the second.
    """
    number, name = lines[0]
    builder = _Builder(file, name.strip(), number)
    if not name.strip():
        raise builder.fail(number, "the file is empty; expected lattices")
    if len(split_words(name)) != 1:
        raise builder.fail(number, f"{name[:60]!r}; expected the name of an utterance alone")
    for number, line in lines[1:]:
        fields = split_words(line)
        weight = fields.pop() if len(fields) in (2, 4, 5) and "," in fields[-1] else ""
        graph, acoustic, alignment = _kaldi_weight(builder, number, weight)
        state = _state(builder, number, fields[0]) if fields else 0
        if builder.start is None:
            builder.start = state
        if len(fields) == 1:
            builder.finals[state] = (graph, acoustic, alignment)
        elif len(fields) == 3 or (len(fields) == 4 and fields[2].isdecimal()):
            target = _state(builder, number, fields[1])
            word = word_of(builder, number, fields[-1])
            builder.arcs.append(_Arc(state, target, word, graph, acoustic, alignment, number))
        else:
            raise builder.fail(
                number,
                f"{line[:60]!r}; expected FROM TO WORD GRAPH,ACOUSTIC,ALIGNMENT, or a final state",
            )
    return builder.build()


def _kaldi_weight(builder: _Builder, line: int, text: str) -> tuple[float, float, str]:
    if not text:
        return 0.0, 0.0, ""
    parts = text.split(",")
    if len(parts) not in (2, 3):
        raise builder.fail(line, f"the weight {text!r}; expected GRAPH,ACOUSTIC,ALIGNMENT")
    graph, acoustic = (_number(builder, line, part) for part in parts[:2])
    return graph, acoustic, parts[2] if len(parts) == 3 else ""


def _read_slf(file: str, lines: list[tuple[int, str]], _: WordOf) -> Lattice:
    """HTK's SLF: words on nodes or on links; log scores, natural or of the header's base.

    Costs: graph - (lmscale * l + prscale * r + wdpenalty), acoustic - acscale * a.
    """
    builder = _Builder(file, Path(file).name.split(".")[0], lines[0][0] if lines else 1)
    header, nodes, links = _slf_parts(builder, lines)
    builder.utterance = header.get("UTTERANCE", builder.utterance)
    if not nodes:
        raise builder.fail(None, "the lattice is empty; expected nodes (I=..)")
    unit = _slf_unit(builder, header)
    scale = {
        key: _number(builder, builder.line, header.get(name, str(default)))
        for key, name, default in (
            ("l", "lmscale", 1.0), ("a", "acscale", 1.0), ("r", "prscale", 1.0),
            ("penalty", "wdpenalty", 0.0),
        )
    }  # fmt: skip
    incoming: set[int] = set()
    outgoing: set[int] = set()
    for number, link in links:
        ends = [link.get(long, link.get(short)) for long, short in (("START", "S"), ("END", "E"))]
        if None in ends:
            raise builder.fail(number, "a link without S= or E=; expected both nodes")
        source, target = (_state(builder, number, str(end)) for end in ends)
        for node in (source, target):
            if node not in nodes:
                raise builder.fail(number, f"node {node} is not in the file; expected I={node}")
        word = link.get("W", link.get("WORD"))
        node_word = nodes[target].get("W", nodes[target].get("WORD"))
        word = word if word is not None else node_word if node_word is not None else "!NULL"
        score = {
            key: scale[key] * unit * _number(builder, number, link.get(name, link.get(key, "0")))
            for key, name in (("l", "language"), ("a", "acoustic"), ("r", "r"))
        }
        penalty = 0.0 if word in NO_WORDS else scale["penalty"] * unit
        builder.arcs.append(
            _Arc(source, target, word, -(score["l"] + score["r"] + penalty), -score["a"],
                 link.get("d", link.get("div", "")), number)
        )  # fmt: skip
        incoming.add(target)
        outgoing.add(source)
    builder.start = _slf_end(builder, header, "start", nodes, incoming)
    builder.finals[_slf_end(builder, header, "end", nodes, outgoing)] = (0.0, 0.0, "")
    return builder.build(states=nodes)


def _slf_parts(
    builder: _Builder, lines: list[tuple[int, str]]
) -> tuple[dict[str, str], dict[int, dict[str, str]], list[tuple[int, dict[str, str]]]]:
    """The header's fields; those of each node; those of each link, with its line."""
    header: dict[str, str] = {}
    nodes: dict[int, dict[str, str]] = {}
    links: list[tuple[int, dict[str, str]]] = []
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = _slf_fields(builder, number, line)
        if "I" in fields:
            node = _state(builder, number, fields["I"])
            if node in nodes:
                raise builder.fail(number, f"node {node} occurs twice")
            nodes[node] = fields
        elif "J" in fields:
            links.append((number, fields))
        else:
            header.update(fields)
    for name, short, size in (("NODES", "N", len(nodes)), ("LINKS", "L", len(links))):
        expected = header.get(name, header.get(short, str(size)))
        if expected != str(size):
            raise builder.fail(
                None, f"{size} {name.lower()}; the header says {expected}: the file is cut"
            )
    return header, nodes, links


def _slf_fields(builder: _Builder, line: int, text: str) -> dict[str, str]:
    """KEY=VALUE fields; values may be quoted, and a backslash escapes the next character."""
    fields = {}
    for part in re.finditer(
        r"(\S+?)=(\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|(?:\\.|[^\s\\])*)|(\S+)", text
    ):
        if part[3] is not None:
            raise builder.fail(line, f"{part[3][:40]!r}; expected fields KEY=VALUE")
        value = part[2]
        if value[:1] in "\"'" and len(value) > 1:
            value = value[1:-1]
        fields[part[1]] = re.sub(r"\\(.)", r"\1", value)
    return fields


def _slf_unit(builder: _Builder, header: dict[str, str]) -> float:
    """The natural log of the base of scores; base 0 (and 1) are probabilities, refused."""
    base = _number(builder, builder.line, header.get("base", str(math.e)))
    if base <= 1.0:
        raise builder.fail(
            None, f"base={base:g}: scores that are no logarithms; expected log scores"
        )
    return math.log(base)


def _slf_end(
    builder: _Builder, header: dict[str, str], name: str, nodes: dict[int, Any], linked: set[int]
) -> int:
    """The start or end node: as the header says, or the one that no link enters or leaves."""
    if name in header:
        node = _state(builder, builder.line, header[name])
        if node not in nodes:
            raise builder.fail(None, f"{name}={node} is not among the nodes")
        return node
    free = [node for node in nodes if node not in linked]
    if not free:
        raise builder.fail(None, f"no node may be the {name}: links form a cycle")
    if len(free) != 1:
        raise builder.fail(
            None, f"{len(free)} nodes may be the {name}, such as {free[:3]}; expected one, or "
            f"{name}= in the header"
        )  # fmt: skip
    return free[0]


def write_kaldi(lattice: Lattice) -> str:
    """The lattice as Kaldi's compact text lattice, with words; an empty line ends it."""
    rows = [lattice.utterance]
    alignments = lattice.alignments or [""] * lattice.num_arcs
    finals = lattice.final_alignments or [""] * lattice.num_states
    order = np.argsort(lattice.sources, kind="stable")
    by_source = np.searchsorted(lattice.sources[order], np.arange(lattice.num_states + 1))
    states = [lattice.start, *(s for s in range(lattice.num_states) if s != lattice.start)]
    for state in states:
        for arc in order[by_source[state] : by_source[state + 1]]:
            word = _word(lattice, int(arc))
            graph, acoustic = lattice.graph_costs[arc], lattice.acoustic_costs[arc]
            weight = f"{graph:.9g},{acoustic:.9g},{alignments[arc]}"
            rows.append(f"{state}\t{lattice.targets[arc]}\t{word}\t{weight}")
        if np.isfinite(lattice.final_graph[state]):
            graph, acoustic = lattice.final_graph[state], lattice.final_acoustic[state]
            rows.append(f"{state}\t{graph:.9g},{acoustic:.9g},{finals[state]}")
    return "\n".join([*rows, "", ""])


def write_fst(lattice: Lattice) -> str:
    """The lattice as OpenFst's text of an acceptor of words; weights are both costs in sum."""
    rows = []
    order = np.argsort(lattice.sources, kind="stable")
    first = lattice.sources[order] != lattice.start
    for arc in order[np.argsort(first, kind="stable")]:
        weight = lattice.graph_costs[arc] + lattice.acoustic_costs[arc]
        word = _word(lattice, int(arc))
        rows.append(f"{lattice.sources[arc]}\t{lattice.targets[arc]}\t{word}\t{weight:.9g}\n")
    for state in range(lattice.num_states):
        weight = lattice.final_graph[state] + lattice.final_acoustic[state]
        if np.isfinite(weight):
            rows.append(f"{state}\t{weight:.9g}\n")
    return "".join(rows)


def _word(lattice: Lattice, arc: int) -> str:
    number = lattice.word_ids[arc]
    return "<eps>" if number == EPSILON else lattice.words[number]
