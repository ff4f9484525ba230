"""Texts served before as a source of the vLLM plug-in: tenants, bounded memory, the file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from fake_vllm import VOCAB, Request, Target, config_of, draft_freely, is_right, vllm
from lattice_bpd_vllm import served_texts
from lattice_bpd_vllm.proposer import LatticeProposer
from lattice_bpd_vllm.served_texts import ServedTexts

__all__ = ["vllm"]  # a fixture

PROMPT = [3, 1, 4]


def make_proposer(monkeypatch: pytest.MonkeyPatch, **options: Any) -> LatticeProposer:
    config = config_of()
    config.additional_config = {"lattice_bpd": {"log_seconds": 0, **options}}
    proposer = LatticeProposer(config)
    proposer.load_model(Target())
    draft_freely(proposer, monkeypatch)
    return proposer


def serve(
    vllm: Any, proposer: LatticeProposer, tenant: str | None = None, adapter: str | None = None
) -> tuple[Request, int]:
    """A request from start to end, and the steps it took; the next one's first step ends it."""
    request = Request(list(PROMPT), max_tokens=24)
    runner = vllm.runner(proposer, [request])
    state = next(iter(runner.requests.values()))
    name = f"r{proposer.counters.steps}"
    runner.requests = {name: state}
    if tenant is not None:
        state.sampling_params.extra_args = {"lattice_bpd_tenant": tenant}
    if adapter is not None:
        state.lora_request = SimpleNamespace(lora_name=adapter)
    steps = 0
    while len(request.text) < len(PROMPT) + 24:
        runner.step()
        steps += 1
    runner.requests = {}
    runner.batch = []
    proposer._drafter._mixture.texts.forget(())  # type: ignore[union-attr]
    return request, steps


def test_tenants_draft_from_their_own_texts(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_proposer(monkeypatch)
    assert serve(vllm, plain)[1] == serve(vllm, plain)[1]
    proposer = make_proposer(monkeypatch, store="")
    request, first = serve(vllm, proposer, tenant="a")
    assert is_right(request)
    assert serve(vllm, proposer, tenant="b")[1] == first
    assert serve(vllm, proposer)[1] == first
    assert serve(vllm, proposer, adapter="a")[1] == first
    assert serve(vllm, proposer, tenant="a")[1] < first / 2
    request, steps = serve(vllm, proposer, adapter="a")
    assert steps < first / 2  # 4 draft tokens of each step are right
    assert is_right(request)
    assert proposer.counters.failures == 0


def test_the_store_is_kept_in_a_file(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "served.store"
    before = make_proposer(monkeypatch, store=str(file))
    first = serve(vllm, before, tenant="a")[1]
    served_of(before).save()
    assert [path.name for path in tmp_path.iterdir()] == ["served.store"]
    after = make_proposer(monkeypatch, store=str(file))
    assert serve(vllm, after, tenant="b")[1] == first
    assert serve(vllm, after, tenant="a")[1] < first / 2


def served_of(proposer: LatticeProposer) -> ServedTexts:
    finish = proposer._drafter._mixture.texts._finish  # type: ignore[union-attr]
    served: ServedTexts = finish.__self__  # type: ignore[union-attr]
    return served


def texts_of(served: ServedTexts) -> dict[str, list[int]]:
    return {tenant: store.tokens().tolist() for tenant, store in served._stores.items()}


def test_memory_is_bounded_over_all_tenants(rng: np.random.Generator) -> None:
    served = ServedTexts(1000, VOCAB)
    for n in range(300):
        served.add(f"t{n % 7}", rng.integers(0, VOCAB, size=60).astype(np.int32))
        assert sum(len(tokens) for tokens in texts_of(served).values()) <= 1001
    assert list(texts_of(served))[-1] == f"t{299 % 7}"  # served last
    assert len(texts_of(served)) > 1
    one = ServedTexts(1000, VOCAB)
    for n in range(300):
        one.add("", np.full(60, n, np.int32))
    tokens = texts_of(one)[""]
    assert len(tokens) <= 1001
    assert 299 in tokens  # the latest ones
    assert 270 not in tokens


def test_a_text_is_in_the_file_without_an_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Engines kill their workers, and no request may follow."""
    monkeypatch.setattr(served_texts, "_SAVE_SECONDS", 0.0)
    file = tmp_path / "folder" / "served"
    file.parent.mkdir()
    served = ServedTexts(5000, VOCAB, file)
    for number in range(2):
        add_and_wait(served, [number, 2, 3])
        assert texts_of(ServedTexts(5000, VOCAB, file)) == texts_of(served)
    file.unlink()
    file.parent.rmdir()
    for _ in range(2):
        add_and_wait(served, [5])
    (line,) = caplog.messages
    assert "texts served are not kept" in line
    assert str(file) in line


def add_and_wait(served: ServedTexts, token_ids: list[int]) -> None:
    with served._saving:
        served.add("", np.array(token_ids, np.int32))
        timer = served._timer
    assert timer is not None
    timer.join()


def test_servers_that_share_a_file_leave_one_that_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, write = tmp_path / "served", np.savez
    small, large = ServedTexts(5000, VOCAB, file), ServedTexts(5000, VOCAB, file)
    small.add("", np.arange(9, dtype=np.int32))
    large.add("", np.arange(900, dtype=np.int32) % VOCAB)

    def write_between(*args: Any, **content: Any) -> None:
        monkeypatch.setattr(np, "savez", write)
        large.save()
        write(*args, **content)

    monkeypatch.setattr(np, "savez", write_between)
    small.save()
    assert texts_of(ServedTexts(5000, VOCAB, file)) == texts_of(small)


def test_a_file_holds_what_memory_holds(tmp_path: Path, rng: np.random.Generator) -> None:
    file = tmp_path / "served"
    served = ServedTexts(5000, VOCAB, file)
    for n in range(30):
        tenant = ["", "a/b", "ü"][n % 3]
        served.add(tenant, rng.integers(0, VOCAB, size=40).astype(np.int32))
    served.save()
    assert texts_of(ServedTexts(5000, VOCAB, file)) == texts_of(served)
    with pytest.raises(ValueError, match="a target with 16 tokens, not 17"):
        ServedTexts(5000, VOCAB + 1, file)
    for content in (b"", b"hello", file.read_bytes()[:200]):
        (tmp_path / "damaged").write_bytes(content)
        with pytest.raises(ValueError, match="does not hold served texts"):
            ServedTexts(5000, VOCAB, tmp_path / "damaged")
    with pytest.raises(FileNotFoundError, match="is not there; expected one, on the machine"):
        ServedTexts(5000, VOCAB, tmp_path / "none" / "served")
