"""The command line: help, results, and errors that a user can act on."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

from lattice_bpd import NGramLM, cli
from lattice_bpd.cli import main
from lattice_bpd.draft.config import STRATEGIES, DraftConfig


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_importing_the_command_line_imports_no_torch():
    code = (
        "import sys, lattice_bpd.cli; lattice_bpd.cli.build_parser();"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    pytest.importorskip("tokenizers")
    from lattice_bpd_kim2024.small_models import train_byte_bpe

    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_byte_bpe([TEXT], 300).save(str(path))
    return path


TEXT = "the cat sat on the mat\nthe cat ran\n\nthe dog sat on the cat, \u00e4h\n" * 20


def test_ngram_train_errors(tokenizer_file, tmp_path, capsys):
    """Those of corpora and options are in test_corpus.py and test_command_options.py."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT, encoding="utf-8")
    common = ["--tokenizer", tokenizer_file, "-o", tmp_path / "x.lm"]
    cases = [
        ([tmp_path / "no.txt", *common], "no.txt"),
        ([corpus, *common, "--order", 9], "order"),
        # a .txt is a list of words, one a line
        ([corpus, "--tokenizer", corpus, "-o", tmp_path / "x.lm"], "is not a word"),
    ]
    for arguments, message in cases:
        status, _, err = run(capsys, "ngram", "train", *arguments)
        assert status == 2, arguments
        assert err.splitlines()[-1].startswith("lattice-bpd: error: ")  # after any notes
        assert message in err
    with pytest.raises(SystemExit, match="2"):
        run(capsys, "ngram", "train", corpus, *common, "--min-counts", "1,x")
    assert "--min-counts: '1,x'; expected comma-separated whole numbers" in capsys.readouterr().err
    assert not (tmp_path / "x.lm").exists()


@pytest.fixture(scope="module")
def model_directory(tokenizer_file, tmp_path_factory):
    pytest.importorskip("torch")
    import shutil

    import torch

    from lattice_bpd.train.corpus import read_tokenizer
    from lattice_bpd_kim2024.small_models import build_small_gpt

    torch.set_num_threads(1)
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("model")
    model = build_small_gpt(300, hidden_size=32, num_layers=1, num_heads=4, max_positions=64)
    model.save_pretrained(directory)
    shutil.copy(tokenizer_file, directory / "tokenizer.json")
    ids = read_tokenizer(tokenizer_file).encode(TEXT).ids
    NGramLM.train([ids], 2, vocab_size=300).save(directory / "ngram.lm")
    return directory


pytestmark = pytest.mark.filterwarnings("ignore:Katz")


def test_generate_gives_the_same_text_with_every_strategy(model_directory, capsys):
    texts = []
    plain = [(strategy, []) for strategy in STRATEGIES]
    for strategy, more in [*plain, ("tree", ["--temperature", 3]), ("p_best", ["--lm", "none"])]:
        drafts = ["--lm", model_directory] if strategy == "draft_model" else more
        status, out, _ = run(
            capsys, "generate", model_directory, "--prompt", "the cat", "--strategy", strategy,
            "--max-new-tokens", 9, "--json", *drafts,
        )  # fmt: skip
        assert status == 0
        report = json.loads(out)
        assert report["strategy"] == strategy
        texts.append(report["token_ids"])
    assert texts == [texts[0]] * len(texts)


def test_generate_under_a_constraint(model_directory, tmp_path, capsys):
    pytest.importorskip("llguidance")
    arguments = ["generate", model_directory, "--prompt", "the cat", "--strategy", "tree", "--json"]
    status, out, _ = run(capsys, *arguments, "--regex", "[aeiou]{3}")
    assert status == 0
    assert re.fullmatch("[aeiou]{3}", json.loads(out)["text"].replace("<|endoftext|>", ""))
    assert "regex parse error" in run(capsys, *arguments, "--regex", "[a-z")[2]
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "boolean"}')
    text = json.loads(run(capsys, *arguments, "--json-schema", schema)[1])["text"]
    assert text.replace("<|endoftext|>", "").strip() in ("true", "false")
    assert run(capsys, *arguments, "--json-schema", tmp_path / "none.json")[0] == 2


def test_certificate_files(model_directory, tmp_path, capsys):
    path = tmp_path / "text.json"
    status, out, _ = run(
        capsys, "generate", model_directory, "--prompt", "the cat", "--certificate", path
    )
    assert status == 0
    assert re.search(
        r"^certificate .*text.json: lossless; logits differ by .* tokens differ", out, re.M
    )
    status, out, _ = run(capsys, "certify", path, "--model", model_directory)
    assert (status, out.split(":")[0]) == (0, "lossless")
    content = json.loads(path.read_text())
    others = [*content["token_ids"]]
    others[4] = (others[4] + 1) % 300
    outside = [*content["token_ids"][:-1], 999]
    noise = {**content["noise"], "margins": 1e9}  # not believed
    for change, message in (
        ({"token_ids": others}, "other tokens at . of .* at position 4 they prefer another one"),
        ({"token_ids": others, "noise": noise}, "other tokens"),
        ({"margins": []}, "have different lengths"),
        ({"token_ids": outside}, "token_ids has token id 999"),
        ({"version": 9}, "not a certificate"),
    ):
        path.write_text(json.dumps({**content, **change}))
        status, _, err = run(capsys, "certify", path, "--model", model_directory)
        assert status == 2
        assert re.search(message, err), err


def test_generate_without_heads(model_directory, tmp_path, capsys):
    from transformers import AutoModelForCausalLM

    plain, lm = tmp_path / "plain", tmp_path / "some.lm"
    AutoModelForCausalLM.from_pretrained(model_directory).save_pretrained(plain)
    shutil.copy(model_directory / "tokenizer.json", plain)
    shutil.copy(model_directory / "ngram.lm", lm)
    common = ["--prompt", "the cat", "--json"]
    greedy = run(capsys, "generate", model_directory, *common, "--strategy", "greedy")[1]
    defaults = (
        ([], "mixture"), (["--lm", plain], "draft_model"), (["--lm", lm], "mixture"),
    )  # fmt: skip
    for options, strategy in defaults:
        status, out, _ = run(capsys, "generate", plain, *common, *options)
        assert status == 0
        assert json.loads(out)["strategy"] == strategy
        assert json.loads(out)["token_ids"] == json.loads(greedy)["token_ids"]
    for options, message in (
        (["--strategy", "greedy", "--lm", lm], "strategy 'greedy' does not use an LM"),
        (["--lm", tmp_path / "no.lm"], "no.lm"),
        (["--strategy", "tree"], "without heads use 'mixture'"),
    ):
        assert message in run(capsys, "generate", plain, *common, *options)[2]


def test_generate_with_a_tuned_drafter(model_directory, tmp_path, capsys):
    from transformers import AutoModelForCausalLM

    from lattice_bpd.decode.drafter_file import DrafterFile
    from lattice_bpd.models import load_heads

    plain, folder = tmp_path / "plain", tmp_path / "tuned"
    AutoModelForCausalLM.from_pretrained(model_directory).save_pretrained(plain)
    shutil.copy(model_directory / "tokenizer.json", plain)
    folder.mkdir()
    shutil.copy(model_directory / "ngram.lm", folder / "tuned.lm")
    config = DraftConfig("tree", top_k=4, max_nodes=5)
    about = {"file": "tuned.lm", "order": 2, "vocab_size": 300}
    slots = json.loads((model_directory / "blockwise_heads.json").read_text())["num_heads"]
    DrafterFile(config, 300, slots, about).save(folder / "drafter.json")
    common = ["--prompt", "the cat", "--json"]
    options = ["--strategy", "tree", "--top-k", 4, "--max-nodes", 5]
    expected = json.loads(run(capsys, "generate", model_directory, *common, *options)[1])

    def check(model, *arguments):
        status, out, err = run(capsys, "generate", model, *common, *arguments)
        assert status == 0, err
        names = ("strategy", "token_ids", "accept_lengths")
        assert [json.loads(out)[name] for name in names] == [expected[name] for name in names]

    check(model_directory, "--drafter", folder)  # the model's heads
    check(plain, "--drafter", folder / "drafter.json", "--heads", model_directory)
    load_heads(model_directory).save_pretrained(folder)
    check(plain, "--drafter", folder)
    (folder / "tuned.lm").rename(tmp_path / "moved.lm")
    check(plain, "--drafter", folder / "drafter.json", "--lm", tmp_path / "moved.lm")
    for arguments, message in (
        (["--drafter", folder], "needs an n-gram LM and tuned.lm is not there"),
        (["--drafter", plain], "plain: no drafter.json in this folder"),
        (["--drafter", folder, "--strategy", "bpd", "--alpha", 1, "--lm", "none"],
         "generate: --strategy, --alpha, --lm with --drafter; expected one of them, since "),
    ):  # fmt: skip
        status, _, err = run(capsys, "generate", plain, *common, *arguments)
        assert (status, message in err) == (2, True), err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("decode: no memory to read"), "decode: no memory to read"),
        (MemoryError(), "out of memory; expected more of it, or smaller inputs"),
        (torch.OutOfMemoryError("CUDA out of memory. 9 GiB\nmore"), "CUDA out of memory. 9 GiB"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), "CUBLAS_STATUS_ALLOC_FAILED"),
        (RuntimeError("shapes do not fit"), None),
    ],
)
def test_lack_of_memory_is_one_line(error, message, monkeypatch, capsys):
    def lacks(_):
        raise error

    monkeypatch.setattr(cli, "_parse", lambda _: argparse.Namespace(run=lacks))
    if message is None:
        with pytest.raises(RuntimeError, match="shapes do not fit"):
            main([])
        return
    assert main([]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("lattice-bpd: error: ")
    assert message in err


def test_generate_errors(model_directory, tmp_path, capsys):
    NGramLM.train([[1, 2]], 2, vocab_size=99, smoothing="witten_bell").save(tmp_path / "small.lm")
    (broken := tmp_path / "broken").mkdir()
    (broken / "config.json").write_text("{}")
    without_weights = shutil.copytree(model_directory, tmp_path / "without_weights")
    (without_weights / "model.safetensors").unlink()
    cases = [
        ([broken], "broken: the tokenizer cannot be read"),
        (["nope"], "nope: no such folder; expected the folder of a causal LM of transformers, or "
         "OWNER/NAME of the hub"),
        ([model_directory, "--lm", tmp_path / "small.lm"],
         "small.lm: the LM has a vocabulary of 99, the target one of 300; expected the same "
         "tokenizer"),
        ([model_directory, "--top-k", 301], "expected 1..300"),
        ([model_directory, "--strategy", "ngram", "--lm", "none"],
         "strategy 'ngram' needs an LM; give lm=, NGramLM.load(path)"),
        ([model_directory, "--strategy", "draft_model"],
         "strategy 'draft_model' needs an LM; give lm=, a small causal LM with the target's"),
        ([model_directory, "--strategy", "draft_model", "--lm", "owner"],
         "--lm owner: no such folder; expected the folder of a causal LM of transformers"),
        ([model_directory, "--strategy", "draft_model", "--lm", model_directory / "ngram.lm"],
         "ngram.lm: is a file; expected the folder of a causal LM of transformers"),
        ([model_directory, "--strategy", "tree", "--lm", model_directory],
         "is a directory; expected the file of an n-gram LM for strategy 'tree'; a causal LM is "
         "for 'draft_model' and 'neural'"),
        ([without_weights], "without_weights: the model cannot be read"),
        (["no-such/model"], "no-such/model: no such folder, and the hub does not provide it ("),
    ]  # fmt: skip
    for arguments, message in cases:
        status, _, err = run(capsys, "generate", *arguments, "--prompt", "the")
        assert status == 2, arguments
        assert err.startswith("lattice-bpd: error: ")
        assert message in err, err
    assert run(capsys, "generate", model_directory, "--prompt", "")[0] == 2
    long = "the cat " * 100
    assert "positions for 64" in run(capsys, "generate", model_directory, "--prompt", long)[2]
