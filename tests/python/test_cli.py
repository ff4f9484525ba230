"""The command line: help, results, and errors that a user can act on."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys

import pytest

from lattice_bpd import NGramLM
from lattice_bpd.cli import main
from lattice_bpd.cli.options import describe
from lattice_bpd.draft.config import STRATEGIES, DraftConfig

COMMANDS = [["build"], ["generate"]] + [["ngram", action] for action in (
    "count", "merge-counts", "train", "prune", "merge", "convert", "from-kenlm", "info", "evaluate",
)]  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "example" in printed
    assert "lattice-bpd " + " ".join(command) in printed


def test_help_of_generate_documents_strategies_and_options(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    printed = capsys.readouterr().out
    for name, info in STRATEGIES.items():
        assert re.search(rf"^  {name} +{re.escape(info.summary)}$", printed, re.M)
    words = " ".join(printed.split())
    for name in ("top_k", "num_drafts", "alpha", "temperature"):
        described = describe(DraftConfig, name)
        assert f"{name}: {described}." in " ".join(DraftConfig.__doc__.split())
        assert f"{described} (default {getattr(DraftConfig, name):g})" in words
    assert 'longest draft of "draft_model" (default: 5)' in words
    assert '0 to 64; for "draft_model" a chain (default auto)' in words
    assert max(map(len, printed.splitlines())) <= 100


@pytest.mark.parametrize("arguments", [[], ["sing"], ["ngram"], ["generate"], ["build", "--fast"]])
def test_wrong_usage_ends_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


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


def test_ngram_train_writes_an_lm(tokenizer_file, tmp_path, capsys):
    from lattice_bpd.cli.files import load_tokenizer

    corpus, output = tmp_path / "corpus.txt", tmp_path / "corpus.lm"
    corpus.write_text(TEXT, encoding="utf-8")
    status, out, _ = run(
        capsys, "ngram", "train", corpus, "--order", 3, "--tokenizer", tokenizer_file,
        "--sequence", "paragraph", "--vocab-size", 300, "-o", output,
    )  # fmt: skip
    assert status == 0
    assert "order 3, vocabulary 300" in out
    lm, tokenizer = NGramLM.load(output), load_tokenizer(tokenizer_file)
    seen = tokenizer.encode("the cat").ids
    for index in range(1, len(seen)):
        assert lm.log_prob(seen[index], seen[:index]) > math.log(1 / 300)


def test_ngram_train_errors(tokenizer_file, tmp_path, capsys):
    corpus, empty, binary = (tmp_path / name for name in ("corpus.txt", "empty.txt", "binary.txt"))
    corpus.write_text(TEXT, encoding="utf-8")
    empty.write_text(" \n")
    binary.write_bytes(b"caf\xe9")
    common = ["--tokenizer", tokenizer_file, "-o", tmp_path / "x.lm"]
    cases = [
        ([tmp_path / "no.txt", *common], "no.txt"),
        ([empty, *common], "no text in the file"),
        ([binary, *common], "not UTF-8"),
        ([corpus, *common, "--order", 9], "order"),
        # a .txt is a list of words, one a line
        ([corpus, "--tokenizer", corpus, "-o", tmp_path / "x.lm"], "is not a word"),
        ([corpus, "--tokenizer", tmp_path / "t.json", "-o", tmp_path / "x.lm"], "no such file"),
        ([corpus, "--tokenizer", tokenizer_file, "-o", tmp_path / "no" / "x.lm"], "x.lm"),
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

    from lattice_bpd.cli.files import load_tokenizer
    from lattice_bpd_kim2024.small_models import build_small_gpt

    torch.set_num_threads(1)
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("model")
    model = build_small_gpt(300, hidden_size=32, num_layers=1, num_heads=4, max_positions=64)
    model.save_pretrained(directory)
    shutil.copy(tokenizer_file, directory / "tokenizer.json")
    ids = load_tokenizer(tokenizer_file).encode(TEXT).ids
    NGramLM.train([ids], 2, vocab_size=300).save(directory / "ngram.lm")
    return directory


pytestmark = pytest.mark.filterwarnings("ignore:Katz")


def test_generate_gives_the_same_text_with_every_strategy(model_directory, capsys):
    texts = []
    for strategy in STRATEGIES:
        drafts = ["--draft-model", model_directory] if strategy == "draft_model" else []
        status, out, _ = run(
            capsys, "generate", model_directory, "--prompt", "the cat", "--strategy", strategy,
            "--max-new-tokens", 9, "--json", *drafts,
        )  # fmt: skip
        assert status == 0
        report = json.loads(out)
        assert report["strategy"] == strategy
        assert report["tokens"] == len(report["token_ids"]) <= 9
        texts.append(report["token_ids"])
    status, out, _ = run(
        capsys, "generate", model_directory, "--prompt", "the cat", "--strategy", "tree",
        "--temperature", 3, "--max-new-tokens", 9, "--json",
    )  # fmt: skip
    assert status == 0
    texts.append(json.loads(out)["token_ids"])
    assert texts == [texts[0]] * (len(STRATEGIES) + 1)
    status, out, _ = run(
        capsys, "generate", model_directory, "--prompt", "the", "--lm", "none", "--num-drafts", 2,
        "--strategy", "p_best",
    )  # fmt: skip
    assert status == 0
    assert "block efficiency" in out


def test_generate_names_a_lossy_acceptance(model_directory, capsys):
    arguments = ["generate", model_directory, "--prompt", "the cat", "--max-new-tokens", 20,
                 "--strategy", "ngram", "--alpha", 1000, "--top-k", 64]  # fmt: skip
    status, out, _ = run(capsys, *arguments, "--accept", "top_k:99")
    assert status == 0
    assert re.search(r"^lossy \(top_k:99\): \d+ of 20 tokens are not", out, re.MULTILINE)
    assert re.search(r"regret \d+\.\d{3} nats a token$", out, re.MULTILINE)
    status, out, _ = run(capsys, *arguments, "--accept", "top_k:99", "--json")
    report = json.loads(out)
    assert (report["acceptance"], report["lossless"]) == ("top_k:99", False)
    assert report["relaxed_tokens"] > 0 < report["regret"]
    assert "lossy" not in run(capsys, *arguments)[1]
    status, _, err = run(capsys, *arguments, "--accept", "top_k:0")
    assert status == 2
    assert "TopKMatch: k is 0; expected 1 or more" in err


def test_generate_samples_by_seed(model_directory, capsys):
    def sample(strategy: str, seed: int) -> str:
        status, out, _ = run(
            capsys, "generate", model_directory, "--prompt", "the cat", "--json", "--strategy",
            strategy, "--accept", f"sampled:1.5,seed={seed}",
        )  # fmt: skip
        assert status == 0
        report = json.loads(out)
        assert (report["acceptance"], report["lossless"]) == (f"sampled:1.5,seed={seed}", True)
        return report["text"]

    assert sample("tree", 1) == sample("greedy", 1) != sample("greedy", 2)


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
    content["token_ids"][4] = (content["token_ids"][4] + 1) % 300
    path.write_text(json.dumps(content))
    status, _, err = run(capsys, "certify", path, "--model", model_directory)
    assert status == 2
    assert re.search("other tokens at . of .* at position 4 they prefer another one by", err)
    content["margins"][4], content["noise"]["margins"] = 0.0, 1e9  # not believed
    path.write_text(json.dumps(content))
    assert run(capsys, "certify", path, "--model", model_directory)[0] == 2
    path.write_text(json.dumps({**content, "margins": []}))
    assert "have different lengths" in run(capsys, "certify", path, "--model", model_directory)[2]
    content["token_ids"][4] = 999
    path.write_text(json.dumps(content))
    assert "found token id 999" in run(capsys, "certify", path, "--model", model_directory)[2]
    path.write_text(json.dumps({**content, "version": 9}))
    assert "not a certificate" in run(capsys, "certify", path, "--model", model_directory)[2]


def test_generate_without_heads(model_directory, tmp_path, capsys):
    from transformers import AutoModelForCausalLM

    plain = tmp_path / "plain"
    AutoModelForCausalLM.from_pretrained(model_directory).save_pretrained(plain)
    shutil.copy(model_directory / "tokenizer.json", plain)
    expected = run(
        capsys, "generate", model_directory, "--prompt", "the cat", "--strategy", "greedy", "--json"
    )
    lm = tmp_path / "some.lm"
    shutil.copy(model_directory / "ngram.lm", lm)
    defaults = (
        ([], "mixture"), (["--draft-model", plain], "draft_model"), (["--lm", lm], "mixture"),
        (["--lm", "none"], "mixture"),
    )  # fmt: skip
    for options, strategy in defaults:
        status, out, _ = run(capsys, "generate", plain, "--prompt", "the cat", "--json", *options)
        assert status == 0
        assert json.loads(out)["strategy"] == strategy
        assert json.loads(out)["token_ids"] == json.loads(expected[1])["token_ids"]
    error = run(
        capsys, "generate", plain, "--prompt", "the cat", "--strategy", "greedy", "--lm", lm
    )[2]
    assert "--lm: strategy 'greedy' does not use an LM; leave --lm out" in error
    error = run(capsys, "generate", plain, "--prompt", "the cat", "--lm", tmp_path / "no.lm")[2]
    assert "no.lm" in error
    assert "does not use" not in error
    shutil.copy(lm, plain / "ngram.lm")
    status, out, _ = run(capsys, "generate", plain, "--prompt", "the cat", "--json")
    assert json.loads(out)["strategy"] == "mixture"
    error = run(capsys, "generate", plain, "--prompt", "the cat", "--strategy", "tree")[2]
    assert "without heads use 'mixture'" in error


def test_generate_with_a_tuned_drafter(model_directory, tmp_path, capsys):
    from transformers import AutoModelForCausalLM

    from lattice_bpd.decode.strategies import DrafterFile
    from lattice_bpd.models.checkpoint import copy_heads

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
    copy_heads(model_directory, folder)
    check(plain, "--drafter", folder)
    (folder / "tuned.lm").rename(tmp_path / "moved.lm")
    check(plain, "--drafter", folder / "drafter.json", "--lm", tmp_path / "moved.lm")
    for arguments, message in (
        (["--drafter", folder], "needs an n-gram LM and tuned.lm is not there"),
        (["--drafter", plain], "plain: no drafter.json in this folder"),
        (["--drafter", folder, "--strategy", "bpd", "--alpha", 1, "--lm", "none"],
         "generate: --strategy, --alpha, --lm with --drafter; expected one of them, since "),
        (["--drafter", folder, "--draft-model", plain], "generate: --draft-model with --drafter"),
    ):  # fmt: skip
        status, _, err = run(capsys, "generate", plain, *common, *arguments)
        assert (status, message in err) == (2, True), err


def test_generate_downloads_from_the_hub(model_directory, capsys, monkeypatch):
    import huggingface_hub

    def snapshot(name, allow_patterns):
        assert name == "someone/model"
        assert "*.safetensors" in allow_patterns
        return str(model_directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    status, out, _ = run(capsys, "generate", "someone/model", "--prompt", "the cat", "--json")
    assert status == 0
    assert json.loads(out)["strategy"] == "mixture"


def test_generate_errors(model_directory, tmp_path, capsys):
    NGramLM.train([[1, 2]], 2, vocab_size=99, smoothing="witten_bell").save(tmp_path / "small.lm")
    cases = [
        ([tmp_path], "tokenizer.json: no such file"),
        (["nope"], "nope: no such folder; expected the folder of a causal LM of transformers"),
        ([model_directory, "--lm", tmp_path / "small.lm"],
         "small.lm has a vocabulary of 99, the model one of 300; train the LM on token ids of the "
         "model's tokenizer; if it was trained with the model's own tokenizer, train it again with "
         "--vocab-size 300 (or --model DIR)"),
        ([model_directory, "--lm", tmp_path / "no.lm"], "no.lm"),
        ([model_directory, "--lm", model_directory / "config.json"], "config.json"),
        ([model_directory, "--top-k", 301], "expected 1..300"),
        ([model_directory, "--draft-length", 4], "does not use draft_length; leave it out, or use"),
        ([model_directory, "--strategy", "ngram", "--lm", "none"],
         "strategy 'ngram' needs an LM; give lm=, NGramLM.load(path)"),
        ([model_directory, "--strategy", "draft_model"], "needs a draft model"),
        ([model_directory, "--draft-model", tmp_path], "model cannot be read"),
        ([model_directory, "--draft-model", "an/owner"],
         "--draft-model an/owner: no such folder; expected the folder of a causal LM of "
         "transformers; download a model of the hub first: hf download an/owner"),
        ([model_directory, "--tokenizer", tmp_path], "is a folder; expected a tokenizer.json"),
        ([model_directory, "--drafter", "no.json"], "error: no.json: no such file or folder"),
        ([model_directory, "--strategy", "p_best", "--lm", model_directory / "tokenizer.json"],
         "not an LM file"),
        ([tmp_path, "--tokenizer", model_directory / "tokenizer.json"], "model cannot be"),
        (["no-such/model"], "expected the directory or the hub name of a causal LM"),
    ]  # fmt: skip
    for arguments, message in cases:
        status, _, err = run(capsys, "generate", *arguments, "--prompt", "the")
        assert status == 2, arguments
        assert err.startswith("lattice-bpd: error: ")
        assert message in err, err
    assert run(capsys, "generate", model_directory, "--prompt", "")[0] == 2
    long = "the cat " * 100
    assert "positions for 64" in run(capsys, "generate", model_directory, "--prompt", long)[2]
