"""Lattices of OpenFst, Kaldi and HTK: what is read and written, and errors with their lines."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import FormatError
from lattice_bpd.cli import main
from lattice_bpd_recognition import (
    Lattice,
    LatticeError,
    read_lattices,
    read_symbols,
    read_word_lm,
    rescore_lattice,
    write_fst,
    write_kaldi,
)
from random_word_lattices import names, random_lattice, to_fst
from word_models import SMALL

LN10 = math.log(10)

KALDI = """utt-1
0\t1\tthe\t1.5,20,3_3_4
0\t1\tcat\t1.0,21,5_5
1\t2\t<eps>\t0,0,
1\t2\tcat\t2.25,10,7_8
2\t0.5,0.25,9

utt-2
0 1 sat
1

"""
HTK = """# of a recognizer
VERSION=1.0
UTTERANCE=utt-3 lmscale=2.0 wdpenalty=-1.5
N=4 L=4
I=0 t=0.00
I=1 t=0.3 W=the v=1
I=2 t=0.5 W="cat"
I=3 t=0.9 W=!NULL
J=0 S=0 E=1 a=-20.5 l=-1.25
J=1 S=1 E=2 a=-30 l=-0.5
J=2 S=0 E=2 a=-60 l=-3
J=3 S=2 E=3 a=-1 l=0
"""


def read_one(path: Path, **options: object) -> Lattice:
    found = list(read_lattices(path, **options))  # type: ignore[arg-type]
    assert len(found) == 1
    assert isinstance(found[0], Lattice), found[0]
    return found[0]


def triples(lattice: Lattice) -> list[tuple[int, int, str, float, float]]:
    """The arcs, with words."""
    words = [*lattice.words, "<eps>"]
    rows = zip(lattice.sources.tolist(), lattice.targets.tolist(),
               (words[w] for w in lattice.word_ids), lattice.graph_costs.tolist(),
               lattice.acoustic_costs.tolist(), strict=True)  # fmt: skip
    return list(rows)


def test_kaldi(tmp_path: Path) -> None:
    path = tmp_path / "lat.txt"
    path.write_text(KALDI)
    first, second = read_lattices(path)
    assert isinstance(first, Lattice)
    assert isinstance(second, Lattice)
    assert triples(first) == [
        (0, 1, "the", 1.5, 20.0), (0, 1, "cat", 1.0, 21.0), (1, 2, "<eps>", 0.0, 0.0),
        (1, 2, "cat", 2.25, 10.0),
    ]  # fmt: skip
    assert first.alignments == ["3_3_4", "5_5", "", "7_8"]
    assert first.final_graph.tolist() == [math.inf, math.inf, 0.5]
    assert first.final_acoustic[2] == 0.25
    assert first.final_alignments == ["", "", "9"]
    assert (first.utterance, second.utterance, first.lines) == ("utt-1", "utt-2", [2, 3, 4, 5])
    assert triples(second) == [(0, 1, "sat", 0.0, 0.0)]
    assert second.alignments is None
    (tmp_path / "again.txt").write_text(write_kaldi(first) + write_kaldi(second))
    again = list(read_lattices(tmp_path / "again.txt"))
    for before, after in zip((first, second), again, strict=True):
        assert isinstance(after, Lattice)
        assert triples(after) == triples(before)
        assert after.alignments == before.alignments
        assert after.final_graph.tolist() == before.final_graph.tolist()


def test_kaldi_numbers_and_two_labels(tmp_path: Path) -> None:
    symbols = tmp_path / "words.txt"
    symbols.write_text("<eps> 0\nthe 1\ncat 2\n")
    (tmp_path / "compact").write_text("u\n0 1 1 1,2,3_4\n1 2 0\n2 3 2 0,1,\n3\n")
    (tmp_path / "plain").write_text("u\n0 1 88 1 1,2\n1 2 89 0\n2 3 90 2 0,1\n3\n")
    table = read_symbols(symbols)
    assert table == {0: "<eps>", 1: "the", 2: "cat"}
    expected = [(0, 1, "the", 1.0, 2.0), (1, 2, "<eps>", 0.0, 0.0), (2, 3, "cat", 0.0, 1.0)]
    for name in ("compact", "plain"):
        assert triples(read_one(tmp_path / name, symbols=table)) == expected, name
    (tmp_path / "packed.gz").write_bytes(gzip.compress((tmp_path / "compact").read_bytes()))
    assert triples(read_one(tmp_path / "packed.gz", symbols=table)) == expected
    (tmp_path / "comma").write_text("u\n0 1 1,000\n1\n")
    assert triples(read_one(tmp_path / "comma"))[0][2] == "1,000"


def test_htk(tmp_path: Path) -> None:
    path = tmp_path / "u.slf"
    path.write_text(HTK)
    lattice = read_one(path)
    assert lattice.utterance == "utt-3"
    # graph = -(2 * l - 1.5) for words, acoustic = -a; words are those of the nodes that are entered
    assert triples(lattice) == [
        (0, 1, "the", 4.0, 20.5), (1, 2, "cat", 2.5, 30.0), (0, 2, "cat", 7.5, 60.0),
        (2, 3, "<eps>", 0.0, 1.0),
    ]  # fmt: skip
    assert lattice.final_graph.tolist() == [math.inf, math.inf, math.inf, 0.0]
    path.write_text(
        "VERSION=1.1 base=10 start=5 end=7\nN=2 L=1\nI=7\nI=5\n"
        "J=0 START=5 END=7 WORD=O\\'K a=-2 l=-1 r=-0.5\n"
    )
    ((source, target, word, graph, acoustic),) = triples(read_one(path))
    assert (source, target, word) == (0, 1, "O'K")
    assert (graph, acoustic) == (pytest.approx(1.5 * LN10), pytest.approx(2 * LN10))


def test_openfst(tmp_path: Path, rng: np.random.Generator) -> None:
    pytest.importorskip("pywrapfst")
    table = {i + 1: name for i, name in enumerate(names(5))}
    for number in range(30):
        lattice = random_lattice(rng, 6, 12, 5)
        fst = to_fst(lattice)
        path = tmp_path / f"u{number}.fst"
        fst.write(str(path))
        text = tmp_path / f"u{number}.txt"
        text.write_text(fst.print(acceptor=True))
        totals = lattice.graph_costs + lattice.acoustic_costs
        expected = sorted(
            (int(a), int(b), [*lattice.words, "<eps>"][w], float(c), 0.0)
            for a, b, w, c in zip(
                lattice.sources, lattice.targets, lattice.word_ids, totals, strict=True
            )
        )  # fmt: skip
        binary = read_one(path, symbols=table)
        assert binary.lines == ()
        for read in (binary, read_one(text, symbols=table)):
            state = read.state_names  # in the file
            found = sorted((state[a], state[b], *rest) for a, b, *rest in triples(read))
            assert [row[:3] for row in found] == [row[:3] for row in expected]
            np.testing.assert_allclose([r[3] for r in found], [r[3] for r in expected], atol=1e-5)
    (tmp_path / "again.txt").write_text(write_fst(binary))
    again = read_one(tmp_path / "again.txt")
    rows = [sorted(row[2:] for row in triples(one)) for one in (again, binary)]
    assert [row[0] for row in rows[0]] == [row[0] for row in rows[1]]
    np.testing.assert_allclose([r[1] for r in rows[0]], [r[1] for r in rows[1]], atol=1e-5)


def test_openfst_text_of_words(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("0 1 the 0.5\n1 2 1000\n2 1.5\n")
    assert triples(read_one(path)) == [(0, 1, "the", 0.5, 0.0), (1, 2, "1000", 0.0, 0.0)]
    path.write_text("0 1 7 7\n1 2 3 3\n2\n")  # a transducer that has no weights
    assert [row[2:4] for row in triples(read_one(path))] == [("7", 0.0), ("3", 0.0)]
    path.write_text("0 1 x the 0.5\n1 2 y cat\n2\n")
    assert triples(read_one(path)) == [(0, 1, "the", 0.5, 0.0), (1, 2, "cat", 0.0, 0.0)]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("kaldi", "u\n0 1 a 1,x,3\n1\n", r"line 2 \(utterance u\): 'x' is no cost"),
        ("kaldi", "u\n0 1 a 1\n1\n", "line 2"),
        ("kaldi", "u\n0 1\n", "line 2"),
        ("kaldi", "u\n0 ² a 1,2,\n", "line 2 .*'²' is no state"),
        ("kaldi", "u\n0 b a 1,2,\n", "line 2 .*'b' is no state"),
        ("kaldi", "u v\n0 1 a 1,2,\n", "line 1 .*'u v'; expected the name"),
        ("kaldi", "u\n", "line 1 .*the lattice is empty"),
        ("openfst", "0 1 a b c d\n", "line 1 .*6 fields"),
        ("openfst", "0 1 a nan\n1\n", "line 1"),
        ("openfst", "", "the lattice is empty"),
        ("htk", "VERSION=1.0\nI=0\nI=1\nJ=0 S=0 E=3 W=a\n", "line 4 .*node 3 is not in the file"),
        ("htk", "VERSION=1.0\nI=0\nI=1\nJ=0 S=0 W=a\n", "line 4 .*a link without S= or E="),
        ("htk", "VERSION=1.0\nI=0\nhello\n", "line 3 .*'hello'; expected fields"),
        ("htk", "VERSION=1.0\nN=0\n", "the lattice is empty"),
        ("htk", "N=2 L=1\nI=0\nI=1\n", "0 links; the header says 1: the file is cut"),
        ("htk", "N=1\nI=0\nI=1\nJ=0 S=0 E=1 W=a\n", "2 nodes; the header says 1"),
        ("htk", "I=0\nI=1\nI=1\nJ=0 S=0 E=1 W=a\n", "line 3 .*node 1 occurs twice"),
        ("htk", "I=0\nI=1\nJ=0 S=0 E=1 W=a\nJ=1 S=1 E=0 W=a\n", "links form a cycle"),
        ("kaldi", "", "line 1: the file is empty"),
        ("kaldi", "\n\n", "line 1: the file is empty"),
        ("htk", "VERSION=1.0 base=0\nI=0\n", "base=0: scores that are no logarithms"),
        ("htk", "VERSION=1.0\nI=0\nI=1\nI=2\nJ=0 S=0 E=2 W=a\n", "2 nodes may be the start"),
    ],
)
def test_damaged_files(kind: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.lat"
    path.write_text(text)
    (found,) = read_lattices(path, kind)
    assert isinstance(found, LatticeError), found
    with pytest.raises(LatticeError, match=f"bad.lat.*{message}"):
        raise found


def test_labels_that_are_no_symbols(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0 1 1\n1 2 7\n2\n")
    (found,) = read_lattices(tmp_path / "a.txt", symbols={0: "<eps>", 1: "the"})
    assert "line 2" in str(found)
    assert "label '7' is not in the symbol table" in str(found)
    (tmp_path / "bad.sym").write_text("<eps> 0\nthe one\n")
    with pytest.raises(FormatError, match="line 2: 'the one'"):
        read_symbols(tmp_path / "bad.sym")
    (tmp_path / "foreign").write_text("hello world\n")
    with pytest.raises(FormatError, match="not a lattice of OpenFst, Kaldi"):
        list(read_lattices(tmp_path / "foreign"))
    (tmp_path / "cut.fst").write_bytes(b"\xd6\xfd\xb2\x7e\x06\0\0\0vector")
    (cut,) = read_lattices(tmp_path / "cut.fst")
    assert isinstance(cut, LatticeError)


def test_symbol_tables_inside(tmp_path: Path) -> None:
    """A binary file may have the words; a table that is given comes first, then output labels'."""
    fst = pytest.importorskip("pywrapfst")
    made = fst.VectorFst()
    states = [made.add_state() for _ in range(2)]
    made.set_start(0)
    made.add_arc(0, fst.Arc(1, 2, fst.Weight("tropical", 0.5), states[1]))
    made.set_final(1)
    tables = []
    for words in (["<eps>", "in", "two"], ["<eps>", "one", "out"]):
        tables.append(fst.SymbolTable())
        for word in words:
            tables[-1].add_symbol(word)
    path = tmp_path / "u.fst"
    for given, word in (((None, None), "2"), ((tables[0], None), "two"), (tables, "out")):
        made.set_input_symbols(given[0])
        made.set_output_symbols(given[1])
        made.write(str(path))
        assert triples(read_one(path)) == [(0, 1, word, 0.5, 0.0)]
        assert triples(read_one(path, symbols={2: "x"})) == [(0, 1, "x", 0.5, 0.0)]


def test_one_bad_utterance_of_a_file(tmp_path: Path) -> None:
    bad = {
        b"": "the lattice is empty", b"0 1 c\xe4t 1,2,\n1": "byte .*0xe4. is not UTF-8",
        b"0 1 a nan,2,\n1": "'nan' is no cost", b"0 1 a 1,2,\n1 2": "'1 2'; expected FROM TO WORD",
    }  # fmt: skip
    good = b"0 1 the 1,2,\r\n1\r"
    for lines, message in bad.items():
        for at in range(3):
            blocks = [good, good, good]
            blocks[at] = lines
            data = b"".join(b"u%d\n%s\n\n" % row for row in enumerate(blocks))
            (tmp_path / "lat").write_bytes(data)
            found = list(read_lattices(tmp_path / "lat"))
            assert [isinstance(one, LatticeError) for one in found] == [i == at for i in range(3)]
            first = 1 + sum(block.count(b"\n") + 3 for block in blocks[:at])
            line = first + (lines.count(b"\n") + 1 if lines else 0)
            where = rf"line ({first + 1}|{line})\b" if lines else f"line {first} "
            with pytest.raises(LatticeError, match=f"lat, {where}.*{message}"):
                raise found[at]  # type: ignore[misc]


def test_one_bad_file_of_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.arpa").write_text(SMALL)
    (tmp_path / "empty.lat").write_text("")
    (tmp_path / "cut.fst").write_bytes(b"\xd6\xfd\xb2\x7e\x06\0\0\0vector")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(KALDI.encode())[:-9])
    (tmp_path / "good.txt").write_text(KALDI)
    names = ("empty.lat", "cut.fst", "cut.gz", "nowhere", "good.txt")
    command = ["rescore", *(str(tmp_path / name) for name in names), "--alpha", "1"]
    assert main([*command, "--lm", str(tmp_path / "small.arpa")]) == 2
    out, err = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["utt-1", "utt-2"]
    assert all(name in err for name in names[:-1])
    assert "4 lattices could not be searched" in err
    (tmp_path / "good.txt").write_text("0 1 17 0.5\n1\n")
    assert main(["rescore", *command[5:], "--lm", str(tmp_path / "small.arpa")]) == 0
    assert "no word is in the LM, such as '17'" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.arpa").write_text(SMALL)
    path, out = tmp_path / "lat.txt", tmp_path / "out.jsonl"
    path.write_text(
        KALDI + "utt-x\n0 1 the 1,1,\n1 0 the 1,1,\n1\n\n" + KALDI.replace("utt-", "utz-")
    )
    command = ["rescore", str(path), "--lm", str(tmp_path / "small.arpa"), "--alpha", "0.5"]
    assert main([*command, "--num-paths", "3", "--acoustic-scale", "0.1", "-o", str(out)]) == 2
    error = capsys.readouterr().err
    assert any(f"{path}, line {n} (utterance utt-x)" in error for n in (13, 14))
    assert "part of a cycle" in error
    assert "1 lattices could not be searched" in error
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["id"] for record in records] == ["utt-1", "utt-2", "utz-1", "utz-2"]
    lm = read_word_lm(tmp_path / "small.arpa")
    lattice = next(iter(read_lattices(path)))
    assert isinstance(lattice, Lattice)
    expected = rescore_lattice(lattice, lm, 0.5, num_paths=3, acoustic_scale=0.1).paths
    assert [row["text"] for row in records[0]["hypotheses"]] == [p.text for p in expected]
    assert records[0]["hypotheses"][0]["score"] == expected[0].total

    path.write_text(KALDI)
    assert main([*command, "--lattices", "kaldi", "-o", str(tmp_path / "after.txt")]) == 0
    after = next(iter(read_lattices(tmp_path / "after.txt")))
    assert isinstance(after, Lattice)
    best = rescore_lattice(after, lm, 0.0).paths[0]
    assert best.words == rescore_lattice(lattice, lm, 0.5).paths[0].words
    assert after.alignments is not None
    assert {"3_3_4", "5_5", "7_8"} >= {after.alignments[arc] for arc in best.arcs} - {""}

    # n-best of lattices is what --tune reads
    assert main([*command[:4], "--alpha", "0", "--num-paths", "9", "-o", str(out)]) == 0
    (tmp_path / "refs").write_text("utt-1 the cat\nutt-2 sat\n")
    capsys.readouterr()
    pytest.importorskip("jiwer")
    assert main(["rescore", str(out), *command[2:4], "--tune", str(tmp_path / "refs")]) == 0
    assert "best hypothesis of each list" in capsys.readouterr().err
