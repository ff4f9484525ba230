"""Models of the hub, and of folders of all kinds: commands read what transformers reads."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from build_runs import chat_tokenizer
from fake_hub import serve_hub, use_hub
from lattice_bpd.cli import main
from lattice_bpd.pretrained import find_pretrained
from target_models import build_target

COUNT = 8
MODELING = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own_llama"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""
TOKENIZATION = """
from transformers import PreTrainedTokenizer

class OwnTokenizer(PreTrainedTokenizer):
    def __init__(self, **options):
        super().__init__(unk_token="<unk>", eos_token="<|end|>", **options)

    @property
    def vocab_size(self):
        return 60

    def get_vocab(self):
        return {**{f"w{n}": n for n in range(60)}, **self.added_tokens_encoder}

    def _tokenize(self, text, **options):
        return text.split()

    def _convert_token_to_id(self, token):
        return int(token[1:])

    def _convert_id_to_token(self, number):
        return f"w{number}"

    def save_vocabulary(self, *args, **options):
        return ()
"""


def change(path: Path, **values: Any) -> None:
    """Sets values of a JSON object."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_template(folder: Path) -> None:
    """Template and a further one in files of their own."""
    build_target("llama").save_pretrained(folder)
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ 1 }}"}
    tokenizer.save_pretrained(folder)


def write_shards(folder: Path) -> None:
    """Weights in several files, beside the same in another format, which is not needed."""
    write_template(folder)
    model = build_target("llama")
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")


def write_bpe(folder: Path) -> None:
    """vocab.json and merges.txt, and weights as a pickle."""
    from lattice_bpd_kim2024.small_models import train_byte_bpe

    text = "the cat sat on the mat, the dog ran to the cat\n" * 9
    folder.mkdir(parents=True)
    train_byte_bpe([text], 280).model.save(str(folder))
    names = {"tokenizer_class": "GPT2Tokenizer", "unk_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def write_sentencepiece(folder: Path) -> None:
    """tokenizer.model alone."""
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    build_target("llama").save_pretrained(folder)
    lines = iter(["the cat sat on the mat", "a dog ran to the cat", "w33 is Hi"] * 20)
    with (folder / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines, model_writer=file, vocab_size=40, model_type="bpe",
            character_coverage=1.0,
        )  # fmt: skip
    config = {"tokenizer_class": "LlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_code(folder: Path) -> None:
    """A model of code of its own."""
    write_template(folder)
    (folder / "modeling_own.py").write_text(MODELING)
    names = {"AutoConfig": "modeling_own.OwnConfig",
             "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}  # fmt: skip
    change(folder / "config.json", auto_map=names, model_type="own_llama")


def write_tokenizer_code(folder: Path) -> None:
    """A tokenizer of code of its own, and no other."""
    build_target("llama").save_pretrained(folder)
    (folder / "tokenization_own.py").write_text(TOKENIZATION)
    names = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    config = {"auto_map": names, "tokenizer_class": "OwnTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_adapter(folder: Path) -> None:
    """LoRA's weights of own/template, and no tokenizer."""
    peft = pytest.importorskip("peft")
    model = copy.deepcopy(build_target("llama"))
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(folder)
    change(folder / "adapter_config.json", base_model_name_or_path="own/template")


KINDS = {
    "template": write_template, "shards": write_shards, "bpe": write_bpe,
    "sentencepiece": write_sentencepiece, "code": write_code,
    "tokenizer-code": write_tokenizer_code, "adapter": write_adapter,
}  # fmt: skip
TRUSTED = ("code", "tokenizer-code")
CHATS = ("template", "shards", "code", "adapter")


class Result(NamedTuple):
    status: int
    out: str
    err: str


def run(root: Path, line: list[str], folder: str = "elsewhere") -> Result:
    """A command in a folder below the root; hub names are no folders in most of them."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        (root / folder).mkdir(exist_ok=True)
        patched.chdir(root / folder)
        status = main(line)
    return Result(status, out.getvalue(), err.getvalue())


def command(kind: str, name: str) -> list[str]:
    """`generate` of a model."""
    text = ["--chat", "Hi w33"] if kind in CHATS else ["--prompt", "w33 w34"]
    if kind in ("bpe", "sentencepiece"):
        text = ["--prompt", "the cat"]
    trust = ["--trust-remote-code"] if kind in TRUSTED else []
    return ["generate", name, *text, "--json", "--max-new-tokens", str(COUNT), *trust]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("hub")
    for kind, write in KINDS.items():
        write(root / "repositories/own" / kind)
    other = root / "repositories/own/template@v2"
    shutil.copytree(root / "repositories/own/template", other)
    build_target("gpt_neox").save_pretrained(other)
    for owner in ("gated", "private"):
        shutil.copytree(root / "repositories/own/template", root / "repositories" / owner / "model")
    return root


def expected(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What transformers' own classes make of a folder."""
    monkeypatch.chdir(root / "repositories")
    folder, trust = f"own/{kind}", kind in TRUSTED
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust)
    source = "own/template" if kind == "adapter" else folder
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust)
    text = command(kind, "")[3]
    if kind in CHATS:
        messages = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )["input_ids"]
    else:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
    ends = model.generation_config.eos_token_id or tokenizer.eos_token_id
    output = model.generate(ids, do_sample=False, max_new_tokens=COUNT, eos_token_id=ends)
    return output[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="module")
def results(root: Path) -> dict[str, Any]:
    """Of all kinds from folders, from the hub, and from its cache; and what was downloaded."""
    found: dict[Any, Any] = {}
    with use_hub("http://127.0.0.1:9", root / "none", offline=True):
        for kind in KINDS:
            found["folder", kind] = run(root, command(kind, f"./own/{kind}"), "repositories")
    lines: dict[Any, list[str]] = {("hub", kind): command(kind, f"own/{kind}") for kind in KINDS}
    names = ("own/template@v2", "gated/model", "private/model", "no/x", "own/template@v3")
    lines |= {name: command("template", name) for name in names}
    lines["draft model", "template"] = [
        *command("template", "own/template"), "--strategy", "draft_model", "--lm", "own/template"
    ]  # fmt: skip
    for kind in TRUSTED:
        lines["untrusted", kind] = command(kind, f"own/{kind}")[:-1]
    with serve_hub(root / "repositories") as (address, downloads), use_hub(address, root / "cache"):
        found |= {name: run(root, line) for name, line in lines.items()}
    with use_hub(address, root / "cache", offline=True):
        for kind in KINDS:
            found["cache", kind] = run(root, command(kind, f"own/{kind}"))
        found["not cached"] = run(root, command("template", "own/other"))

    def sleep(_: float) -> None:
        raise TimeoutError("it waits for the hub")

    with use_hub("http://127.0.0.1:9", root / "cache"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "sleep", sleep)
        found["unreachable", "template"] = run(root, command("template", "own/template"))
    return {**found, "downloads": downloads}


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *itertools.product(["folder", "hub", "cache"], KINDS),
        ("unreachable", "template"),
        ("draft model", "template"),
    ],
)
def test_a_model_is_what_transformers_makes_of_it(
    place: str, kind: str, root: Path, results: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = results[place, kind]
    assert result.status == 0, result.err
    assert json.loads(result.out)["token_ids"] == expected(root, kind, monkeypatch)


def test_weights_are_downloaded_once(results: dict[Any, Any]) -> None:
    downloads = results["downloads"]
    assert not [name for name in downloads if name == "own/shards/pytorch_model.bin"]
    weights = [name for name in downloads if name.startswith("own/shards/model-")]
    assert len(weights) == len(set(weights)) > 1


def test_a_revision(results: dict[Any, Any], root: Path) -> None:
    model = build_target("gpt_neox")
    prompt = torch.tensor([[2, 4, 33, 3]])
    output: Any = model.generate(prompt, do_sample=False, max_new_tokens=COUNT, eos_token_id=1)
    assert json.loads(results["own/template@v2"].out)["token_ids"] == output[0, 4:].tolist()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gated/model", "Cannot access gated repo"),
        ("private/model", "that you may read (log in: hf auth login)"),
        ("no/x", "the hub does not provide it (401 Client Error. Repository Not Found"),
        ("own/template@v3", "Revision Not Found"),
        ("not cached", "Cannot find an appropriate cached snapshot"),
        (("untrusted", "code"), "own/code: the model needs Python code"),
        (("untrusted", "tokenizer-code"), "own/tokenizer-code: the tokenizer needs Python code"),
    ],
)
def test_refusals_are_one_line(name: Any, message: str, results: dict[Any, Any]) -> None:
    status, out, err = results[name]
    lines = [line for line in err.splitlines() if "Fetching" not in line]
    assert (status, out, len(lines)) == (2, "", 1), err
    assert lines[0].startswith("lattice-bpd: error: ")
    assert message in lines[0]


def test_the_tokenizer_alone_needs_no_weights(root: Path) -> None:
    (root / "corpus.txt").write_text("the cat sat on the mat\n")
    line = ["ngram", "train", str(root / "corpus.txt"), "--model", "own/bpe", "--order", "2", "-o",
            str(root / "out.lm"), "--smoothing", "witten_bell"]  # fmt: skip
    with serve_hub(root / "repositories") as (address, downloads), use_hub(address, root / "new"):
        result = run(root, line)
    assert result.status == 0, result.err
    assert "own/bpe/vocab.json" in downloads
    assert not [name for name in downloads if name.endswith((".bin", ".safetensors"))]


def test_a_built_drafter_has_the_name_of_the_hub(root: Path) -> None:
    (root / "prompts.json").write_text(json.dumps([f"Hi w{n}" for n in range(20, 40)]))
    line = ["build", "own/template", "--prompts", str(root / "prompts.json"), "-o",
            str(root / "drafter"), "--max-new-tokens", "8"]  # fmt: skip
    with serve_hub(root / "repositories") as (address, _), use_hub(address, root / "cache"):
        result = run(root, line)
    assert result.status == 0, result.err
    assert (root / "drafter/README.md").read_text().startswith("# Drafter for own/template\n")
    stored = (root / "drafter/build_files/responses.jsonl").read_text().splitlines()
    assert [2, 4, 33, 3] in [json.loads(one)["prompt"] for one in stored]  # by the template


def test_code_runs_only_where_it_is_allowed(root: Path) -> None:
    found = find_pretrained(root / "repositories/own/code")
    with pytest.raises(
        ValueError, match=r"the model needs Python code of its own.*--trust-remote-"
    ):
        found.load_model()
