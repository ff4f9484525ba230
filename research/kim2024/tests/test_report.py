"""`lattice-bpd report`: the page of a tiny run, its escapes, and its lattices in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("rich")
pytest.importorskip("tokenizers")

import tokenizers

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import NGramLM
from lattice_bpd.cli import main
from lattice_bpd_kim2024.report.page import paper_efficiency, paper_gain

VOID = {"meta", "input", "br", "hr", "img", "link"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


def word(number: int) -> str:
    """Every token is hostile: an element, an entity and the end of a script."""
    return f"</script><i>&{number}'"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of two tasks, one of them of the paper's."""
    path = tmp_path_factory.mktemp("report")
    model_of("trained").save_pretrained(path / "model")
    model_of("trained").base.save_pretrained(path / "rescorer")
    words = {word(number): number for number in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=word(0)))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "model" / "tokenizer.json"))
    text = looping_text(2000, seed=2)
    NGramLM.train([text], 3, vocab_size=VOCAB, smoothing="witten_bell").save(path / "three.lm")
    ids = looping_text(600, seed=9).tolist()
    lines = [" ".join(word(i) for i in ids[40 * n : 40 * n + 8]) for n in range(8)]
    rows = [{"prompt": line, "id": f"<u>{n}"} for n, line in enumerate(lines)]
    (path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    news = [{"document": line, "summary": "x"} for line in lines[:6]]
    (path / "news.jsonl").write_text("\n".join(map(json.dumps, news)))
    arguments = [
        "evaluate", "--out", str(path / "run"), "--model", str(path / "model"),
        "--lm", str(path / "three.lm"), "--rescorer", str(path / "rescorer"),
        "--task", "jsonl", "--data", str(path / "rows.jsonl"),
        "--task", "xsum", "--data", str(path / "news.jsonl"), "--max-new-tokens", "12",
        "--top-k", "8", "--num-drafts", "4", "--max-nodes", "9", "--alphas", "0.2,0.6",
        "--temperatures", "1", "--live", "1",
    ]  # fmt: skip
    assert main(arguments) == 0
    return path / "run"


class Balanced(HTMLParser):
    """Fails where an element is not closed, or another one is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.data = ""

    def handle_starttag(self, tag, attrs):
        del attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open[-1:] == [tag], f"</{tag}> at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data):
        self.data += data


def page_of(run: Path, *more: str) -> str:
    page = run.parent / "page.html"
    assert main(["report", str(run), "-o", str(page), *more]) == 0
    return page.read_text()


def embedded(page: str) -> dict:
    match = re.search(r'<script type="application/json" id="steps">(.*?)</script>', page, re.S)
    assert match is not None
    return json.loads(match[1])


def test_report_is_one_whole_page(run, capsys):
    assert main(["report", str(run)]) == 0
    assert "report.html: " in capsys.readouterr().out
    page = (run / "report.html").read_text()
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert not re.search(r"https?:|//www\.|@import|<link|src=", page)
    results = json.loads((run / "results.json").read_text())
    for task_name, task in results["tasks"].items():
        assert f"<h2>{task_name}</h2>" in page
        for line in task["strategies"]:
            assert line["label"] in parser.data
            assert f"{line['block_efficiency']:.2f} ({line['interval']['low']:.2f}" in parser.data
    assert "paper 1.13" in parser.data  # XSUM's BPD, table 1
    assert "paper 1.26, +11.5%" in parser.data  # its 16-best 4-gram, table 4
    assert "paper 1.23, +8.8%" in parser.data  # its neural rescoring with 61 M parameters


def test_report_embeds_steps_that_agree_with_the_record(run):
    page = page_of(run, "--steps", "7")
    data = embedded(page)
    assert len(data["steps"]) == 7
    assert "The first 7 of 168 recorded positions" in page
    assert {step["task"] for step in data["steps"]} == {"jsonl", "xsum"}
    assert set(data["labels"]) >= {"bpd", "neural", "p_best_ngram", "tree"}
    for step in data["steps"]:
        assert step["context"][-1].startswith("</script><i>&")
        for slot, (arcs, rank) in enumerate(zip(step["arcs"], step["wanted"], strict=True)):
            by_rank = {arc[0]: arc[1] for arc in arcs}
            assert rank == -1 or by_rank[rank] == step["greedy"][slot]
            scores = [arc[2] for arc in arcs]
            assert scores == sorted(scores, reverse=True)
        bpd = step["drafts"]["bpd"]
        assert bpd["paths"] == [[0] * len(step["arcs"])]
        kept = next((n for n, r in enumerate(step["wanted"]) if r != 0), len(step["wanted"]))
        assert bpd["accepted"] == kept
        assert step["drafts"]["tree"]["paths"]


def test_report_escapes_what_comes_from_files(run):
    page = page_of(run)
    assert "<i>" not in page  # tokens
    assert "<u>" not in page  # names of examples
    assert page.count("</script>") == 2  # the data's and the script's own
    assert embedded(page)["steps"][0]["name"].startswith("<u>")


def test_report_without_lattices_lm_or_tokenizer(run, tmp_path):
    assert "<script" not in page_of(run, "--steps", "0")
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    results = json.loads((copy / "results.json").read_text())
    results["lms"]["three"]["file"] = str(tmp_path / "gone.lm")
    results["scorers"]["rescorer"]["file"] = str(tmp_path / "gone")
    (copy / "results.json").write_text(json.dumps(results))
    for manifest in copy.glob("record/*/manifest.json"):
        text = manifest.read_text().replace("tokenizer.json", "gone.json")
        manifest.write_text(text)
    page = page_of(copy)
    assert "gone.lm is not there; give it by --lm FILE" in page
    assert "gone is not there; give --rescorer" in page
    assert set(embedded(page)["labels"]) == {"bpd", "p_best_0gram", "tree_0gram"}
    assert "Tokens are shown as ids" in page
    shutil.rmtree(copy / "record")
    assert "No lattices" in page_of(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.clear(), "not the results of an evaluation"),
        (lambda r: r["tasks"]["xsum"].pop("entropies"), "'entropies' is missing"),
    ],
)
def test_report_says_what_is_wrong_with_results(run, tmp_path, capsys, change, message):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    results = json.loads((copy / "results.json").read_text())
    change(results)
    (copy / "results.json").write_text(json.dumps(results))
    assert main(["report", str(copy), "-o", str(copy / "new.html")]) == 2
    assert message in capsys.readouterr().err
    assert not (copy / "new.html").exists()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: apt-get install chromium")
def test_report_draws_the_step_of_its_address(run):
    page_of(run)
    drawn = {}
    for step in (0, 3):
        address = f"{(run.parent / 'page.html').as_uri()}#step={step}"
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu",
            "--virtual-time-budget=2000", "--dump-dom", address,
        ]  # fmt: skip
        dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        match = re.search(r'id="lattice" data-step="(\d+)"><svg(.*?)</svg>', dom.stdout, re.S)
        assert match is not None
        assert match[1] == str(step)
        drawn[step] = match[2]
        assert 'class="drafted' in match[2]
        assert "&lt;/script&gt;&lt;i&gt;" in match[2]
    assert drawn[0] != drawn[3]


PAPER_PERCENTAGES = {
    "lambada": (-1.28, -2.24, 3.53, 5.45), "squad": (0.96, -0.48, 4.85, 6.87),
    "cnndm": (-0.57, -0.57, 4.66, 5.41), "samsum": (9.45, 1.57, 7.87, 14.17),
    "multinews": (13.64, 1.82, 2.73, 10.91), "xsum": (8.85, 2.65, 4.42, 11.50),
    "newsroom": (19.44, 9.26, 2.78, 21.30),
}  # fmt: skip


def test_report_knows_the_papers_gains():
    """Table 4 of Kim et al. 2024 prints gains over BPD beside the block efficiencies."""
    names = ("neural", "ngram_1best", "p_best_0gram", "p_best_ngram")
    for task, percentages in PAPER_PERCENTAGES.items():
        gains = [paper_gain(task, name) for name in names]
        assert gains == pytest.approx([value / 100 for value in percentages], abs=0.003)
    assert paper_efficiency("lambada", "neural") == 3.08  # 3.10 in table 9
    assert paper_efficiency("newsroom", "p_best_ngram") == 1.31
    assert paper_gain("newsroom", "p_best_ngram") == pytest.approx(0.213, abs=5e-4)
    assert paper_efficiency("newsroom", "tree") is None
    assert paper_gain("mine", "bpd") is None
