"""Models and tokenizers as transformers reads them, from a folder or from the hub.

Which files these are, and which of them are downloaded, is decided by AutoTokenizer, AutoConfig and
AutoModelForCausalLM. Here is what they leave open: files of our own beside a model, adapters, code
of a model's own, and errors in one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd.extensions import HEAD_FORMATS, TARGET_PARTS, known_extensions, require

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@(\S+))?")
_CONFIG, _ADAPTER, _TOKENIZER = "config.json", "adapter_config.json", "tokenizer_config.json"
_OWN = ("*.lm", "heads.*", "blockwise_heads.*")


@dataclass(frozen=True)
class Pretrained:
    """A model's folder, or its repository on the hub.

    Attributes:
        name: the folder, or OWNER/NAME.
        folder: with config.json and our own files, such as heads and LMs; of the hub one in its
            cache, where other files are once they are needed.
        revision: the commit on the hub; None: a folder.
        trust_remote_code: whether the model's and the tokenizer's own code may run.
        is_cached: the hub does not answer: only its cache is read.
    """

    name: str
    folder: Path
    revision: str | None = None
    trust_remote_code: bool = False
    is_cached: bool = False

    @cached_property
    def base(self) -> str | None:
        """Of an adapter, such as LoRA's: the folder or name of its model; None: a whole model."""
        path = self.folder / _ADAPTER
        if not path.is_file():
            return None
        name = _read_json(path).get("base_model_name_or_path")
        if not isinstance(name, str) or not name:
            raise FormatError(f"{path}: no base_model_name_or_path; expected the adapter's model")
        return name

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json; empty for an adapter alone.

        Raises:
            FormatError: it is no JSON object.
        """
        path = self.folder / _CONFIG
        return _read_json(path) if path.is_file() else {}

    def load_model(self, **options: Any) -> Any:
        """The causal LM, an adapter within its model.

        Args:
            options: of `AutoModelForCausalLM.from_pretrained`.

        Raises:
            ImportError: transformers, or what an adapter or the model's own code needs.
            FormatError: a file is missing, cut or altered.
            ValueError: the model needs code of its own that may not run.
        """
        pin: dict[str, Any] = {"revision": self.revision}
        if self.base is not None:
            require("peft", "adapters")
            pin = {"adapter_kwargs": pin}  # not of its model
        make = require("transformers", "torch").AutoModelForCausalLM.from_pretrained
        model = self.load("model", make, **{**pin, **options})
        if self.base is not None:
            model.name_or_path = self.name
        return model

    def load_tokenizer(self) -> Any:
        """The tokenizer, of transformers; that of its model for an adapter without one.

        Raises:
            ImportError: transformers, or what the tokenizer needs.
            FormatError: there is none, or a file is cut or altered.
            ValueError: it needs code of its own that may not run.
        """
        if self.base is not None and not (self.folder / _TOKENIZER).is_file():
            return find_pretrained(self.base, self.trust_remote_code).load_tokenizer()
        make = require("transformers", "torch").AutoTokenizer.from_pretrained
        tokenizer = self.load("tokenizer", make, revision=self.revision)
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # as transformers makes without files
            raise FormatError(
                f"{self.name}: the tokenizer has no tokens; expected the files of one, such as "
                "tokenizer.json; copy them from the model's source"
            )
        file = self.folder / "tokenizer.json"
        if file.is_file() and not (self.folder / _TOKENIZER).is_file():
            # The file alone: transformers reads its vocabulary into the class of the model's type.
            plain = require("transformers", "torch").PreTrainedTokenizerFast(
                tokenizer_file=str(file)
            )
            kinds = {type(one.backend_tokenizer.model) for one in (plain, tokenizer)}
            return plain if len(kinds) > 1 else tokenizer
        return tokenizer

    def load(self, what: str, make: Callable[..., Any], **options: Any) -> Any:
        """What a `from_pretrained` of transformers makes of it.

        Args:
            what: name of that, for messages.
            make: the function.
            options: of it.

        Raises:
            ImportError: something that it needs is not installed.
            FormatError: any other error.
            ValueError: it needs code of its own that may not run.
        """
        given = {"trust_remote_code": self.trust_remote_code, **options}
        if self.is_cached:  # else transformers tries for minutes
            given["local_files_only"] = True
        try:
            return make(self.name, **given)
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # many kinds, and any that a model's own code raises
            reason = " ".join(str(error).split()) or type(error).__name__
            if "trust_remote_code" in reason and not given["trust_remote_code"]:
                raise ValueError(
                    f"{self.name}: the {what} needs Python code of its own, which its folder or "
                    "repository has; read that code, then allow it: --trust-remote-code "
                    "(trust_remote_code=True in Python)"
                ) from error
            if "tiktoken" in reason:  # what transformers asks for without protobuf
                reason += " To read a tokenizer.model: pip install sentencepiece protobuf."
            of_base = f", an adapter of {self.base}," if self.base else ""
            raise FormatError(
                f"{self.name}: the {what}{of_base} cannot be read ({reason}); expected its files "
                "as save_pretrained writes them; save or download them again"
            ) from error


def find_pretrained(name: str | Path | Pretrained, trust_remote_code: bool = False) -> Pretrained:
    """A model by the name of its folder, or on the hub.

    Of the hub only small files are downloaded, until more are needed.

    Args:
        name: a folder, or OWNER/NAME or OWNER/NAME@REVISION of the hub: a branch, tag or commit.
            What was found already is returned.
        trust_remote_code: whether the model's and the tokenizer's own code may run.

    Raises:
        OSError: the hub does not have it or does not provide it, or cannot be reached. A folder is
            not looked for.
    """
    if isinstance(name, Pretrained):
        return name
    match = _HUB_NAME.fullmatch(str(name))
    if match is None or Path(name).exists():
        return Pretrained(str(name), Path(name), trust_remote_code=trust_remote_code)
    hub = require("huggingface_hub", "torch")
    patterns = [_CONFIG, _ADAPTER, _TOKENIZER, *_OWN]
    for group in (HEAD_FORMATS, TARGET_PARTS):
        patterns += [f"{name}*" for name in known_extensions(group)]
    try:
        hub.HfApi().model_info(match[1], revision=match[2])
        is_cached = False
    except Exception:  # what this means is found below
        is_cached = True
    try:
        folder = hub.snapshot_download(match[1], revision=match[2], allow_patterns=patterns)
    except Exception as error:  # the hub's errors, and those of connections, are of many kinds
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"{name}: no such folder, and the hub does not provide it ({reason}); expected a "
            "folder, or OWNER/NAME or OWNER/NAME@REVISION of a causal LM that you may read (log "
            "in: hf auth login)"
        ) from error
    return Pretrained(match[1], Path(folder), Path(folder).name, trust_remote_code, is_cached)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: not JSON ({error}); copy the file again") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: a JSON {type(value).__name__}; expected an object")
    return value
