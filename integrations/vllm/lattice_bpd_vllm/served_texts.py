"""Texts served before, by tenant, in bounded memory and in a file."""

from __future__ import annotations

import atexit
import logging
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.atomic_files import replacing
from lattice_bpd.draft.mixture import split_texts
from lattice_bpd_vllm.options import CONFIG_KEY

_FORMAT = "lattice-bpd served texts 1"
_SAVE_SECONDS = 10.0  # from a text to the file, which has all of the meantime
_LOGGER = logging.getLogger("vllm.lattice_bpd")  # vLLM shows the loggers below "vllm"


class ServedTexts:
    """A `TextStore` for each tenant; requests of one tenant draft from its texts only.

    Args:
        max_tokens: tokens of all tenants together; those of the tenant that was served least
            recently are dropped first, and of a single tenant its oldest.
        vocab_size: V of the target.
        file: where the texts are kept; read now if it is there, and written by a thread: engines
            kill their workers at the end. Of several writers the last one's texts remain. None:
            memory only.

    Raises:
        OSError: the file cannot be read.
        ValueError: another file, or texts of another vocabulary.
    """

    def __init__(self, max_tokens: int, vocab_size: int, file: Path | None = None) -> None:
        self._max_tokens, self._vocab_size, self._file = max_tokens, vocab_size, file
        self._stores: dict[str, _core.TextStore] = {}  # served least recently first
        self._sizes: dict[str, int] = {}
        self._timer: threading.Timer | None = None  # while the file lacks a text
        self._saving, self._has_failed = threading.Lock(), False
        if file is not None:
            if not file.parent.is_dir():
                raise FileNotFoundError(
                    f"{CONFIG_KEY}: store {file}: folder {file.parent} is not there; expected one, "
                    "on the machine of the worker"
                )
            if file.exists():
                self._load(file)
            atexit.register(self.save)

    def store_of(self, tenant: str) -> _core.TextStore:
        """The texts of a tenant, which becomes the one that was served last."""
        store = self._stores.pop(tenant, None)
        if store is None:
            store = _core.TextStore(self._max_tokens)
        self._stores[tenant] = store
        return store

    def add(self, tenant: str, token_ids: npt.NDArray[np.int32]) -> None:
        """Add a text (T,), which is in the file some seconds later."""
        self._keep(tenant, token_ids)
        if self._file is not None and self._timer is None:
            self._timer = threading.Timer(_SAVE_SECONDS, self.save)
            self._timer.daemon = True
            self._timer.start()

    def save(self) -> None:
        """Write the file, if there is one and it lacks a text; the first error is logged."""
        with self._saving:
            timer, self._timer = self._timer, None  # texts from now on are for the next one
            if self._file is None or timer is None:
                return
            timer.cancel()
            stores = list(self._stores.items())
            texts: dict[str, Any] = {
                f"texts{n}": store.tokens() for n, (_, store) in enumerate(stores)
            }
            try:
                with replacing(self._file) as temporary, temporary.open("wb") as output:
                    np.savez(
                        output, format=np.array(_FORMAT), vocab_size=np.array(self._vocab_size),
                        tenants=np.array([name for name, _ in stores], np.str_), **texts,
                    )  # fmt: skip
            except OSError as error:
                if not self._has_failed:
                    _LOGGER.warning("lattice-bpd: texts served are not kept: store: %s", error)
                self._has_failed = True

    def _keep(self, tenant: str, token_ids: npt.NDArray[np.int32]) -> None:
        self.store_of(tenant).add(token_ids)
        size = self._sizes.get(tenant, 0) + len(token_ids) + 1
        self._sizes[tenant] = min(size, self._max_tokens)
        for oldest in list(self._stores)[:-1]:
            if sum(self._sizes.values()) <= self._max_tokens:
                break
            del self._stores[oldest]
            self._sizes.pop(oldest, None)

    def _load(self, file: Path) -> None:
        try:
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
                if str(content["format"]) != _FORMAT:
                    raise ValueError(f"its format is {content['format']}")
                vocab_size = int(content["vocab_size"])
                texts = {
                    str(name): content[f"texts{n}"] for n, name in enumerate(content["tenants"])
                }
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{CONFIG_KEY}: store {file} does not hold served texts ({error}); expected a file "
                "that this option wrote, or a new name"
            ) from error
        if vocab_size != self._vocab_size:
            raise ValueError(
                f"{CONFIG_KEY}: store {file} is of a target with {vocab_size} tokens, not "
                f"{self._vocab_size}; give each model a file of its own"
            )
        for tenant, tokens in texts.items():
            for text in split_texts(tokens):
                self._keep(tenant, np.ascontiguousarray(text, np.int32))


def tenant_of(request: Any) -> str:
    """What a request of vLLM names: its adapter, and `lattice_bpd_tenant` of its `vllm_xargs`."""
    adapter = getattr(getattr(request, "lora_request", None), "lora_name", "")
    extra = getattr(request.sampling_params, "extra_args", None) or {}
    tenant = extra.get("lattice_bpd_tenant", "")
    return f"{adapter}/{tenant}" if adapter or tenant else ""
