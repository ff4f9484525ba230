"""The walk through lattices on the device; without a GPU in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # is read when a kernel is defined
pytest.importorskip("triton", reason="needs triton, which vLLM's environment has (make test-vllm)")

from lattice_bpd import NGramLM, rescore_lattice  # noqa: E402
from lattice_bpd.lattice import LatticeInput  # noqa: E402
from lattice_bpd.lm import read_lm  # noqa: E402
from lattice_bpd_vllm import runner_v2  # noqa: E402
from lattice_bpd_vllm.lattice_walk import DeviceLM, walk  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::lattice_bpd.lm.KatzWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
V, POSITIONS = 12, 80


def lm_of(rng: np.random.Generator, order: int, **options: Any) -> NGramLM:
    """Of texts that lack two token ids and have long repeated n-grams."""
    texts = [rng.integers(0, V - 2, 30).astype(np.int32) for _ in range(4)]
    return NGramLM.train(
        [*texts, texts[0][:20]], order, vocab_size=V, **{"smoothing": "witten_bell", **options}
    )


class Case:
    """Random lattices, and texts in rows that are not those of the batch."""

    def __init__(
        self, rng: np.random.Generator, k: int, steps: int, lengths: list[int], top: int = V
    ) -> None:
        batch = len(lengths)
        self.texts = [rng.integers(0, V - 1, length) for length in lengths]
        self.token_ids = np.full((batch + 2, POSITIONS), V - 1, np.int32)
        self.rows = rng.permutation(batch + 2)[:batch]
        for row, text in zip(self.rows, self.texts, strict=True):
            self.token_ids[row, : len(text)] = text
        self.candidates = np.array(
            [[rng.permutation(top)[:k] for _ in range(steps)] for _ in range(batch)]
        ).reshape(batch, steps, k)
        self.scores = rng.normal(0, 1.5, (batch, steps, k, k)).astype(np.float32)

    def walk(self, lm: NGramLM, **options: Any) -> tuple[Any, Any]:
        lengths = [len(text) for text in self.texts]
        tensors = [
            torch.tensor(values).to(DEVICE)
            for values in (self.candidates, self.scores, self.token_ids, self.rows, lengths)
        ]
        combined, tokens = walk(DeviceLM.of(lm, DEVICE), *tensors, **options)
        return combined.cpu().numpy(), tokens.cpu().numpy()

    def core(self, lm: NGramLM, objective: str, alpha: float) -> Any:
        lattice = LatticeInput(
            self.candidates.astype(np.int32), np.zeros(self.candidates.shape, np.float32),
            start=self.scores[:, 0, 0], transitions=self.scores[:, 1:], unary="replaced",
            normalization="local",
        )  # fmt: skip
        return rescore_lattice(
            lattice, self.texts, lm, num_drafts=1, alpha=alpha, objective=objective
        )


def shares_of(text: list[int], history: list[int], token: int) -> float | None:
    """P(token | history) by the text's own n-grams."""
    for length in (2, 1):
        last = history[len(history) - length :]
        starts = [
            i
            for i in range(len(text) - length)
            if len(last) == length and text[i : i + length] == last
        ]
        if starts:
            return sum(text[i + length] == token for i in starts) / len(starts)
    return None


def oracle(case: Case, lm: NGramLM, alpha: float, cache: float, is_best: bool) -> list[list[int]]:
    """Paths by the LM's own probabilities: for each candidate, the best path that ends in it."""
    paths = []
    for text, candidates, scores in zip(case.texts, case.candidates, case.scores, strict=True):
        beam: list[tuple[float, list[int]]] = [(0.0, [])]
        for tokens, matrix in zip(candidates.tolist(), scores, strict=True):
            best: dict[int, tuple[float, list[int]]] = {}
            for i, (total, path) in enumerate(beam):
                history = [*text.tolist(), *path]
                row = []
                for score, token in zip(matrix[i], tokens, strict=True):
                    term = lm.log_prob(token, history)
                    if cache:
                        p, share = np.exp(term), shares_of(text.tolist(), history, token)
                        p = p if share is None else (1 - cache) * p + cache * share
                        term = np.log(max(p, 1e-38))
                    row.append(float(score) + alpha * term)
                norm = np.logaddexp.reduce(row)
                for j, token in enumerate(tokens):
                    new = total + row[j] - norm, [*path, token]
                    if j not in best or new[0] > best[j][0]:
                        best[j] = new
            beam = [best[j] for j in range(len(tokens))]
            if not is_best:
                top = max(beam)
                beam = [one if one is top else (-np.inf, one[1]) for one in beam]
        paths.append(max(beam)[1])
    return paths


LENGTHS = [0, 1, 2, 3, 5, 40]


@pytest.mark.parametrize(
    ("order", "k", "smoothing"),
    [(1, 3, "katz"), (2, 8, "katz"), (3, 1, "witten_bell"), (4, 3, "katz"), (6, 4, "witten_bell")],
)
def test_greedy_walk_is_the_core_s(order: int, k: int, smoothing: str) -> None:
    rng = np.random.default_rng(order)
    lm, case = lm_of(rng, order, smoothing=smoothing), Case(rng, k, 5, LENGTHS)
    expected = case.core(lm, "greedy_walk", 0.7).token_ids[:, 0].tolist()
    assert case.walk(lm, alpha=0.7)[1].tolist() == expected


@pytest.mark.parametrize("k", [1, 8])
def test_best_path_is_the_core_s(k: int) -> None:
    """With an LM of order 2 a candidate is a state; of order 4 its best path's history is kept."""
    rng = np.random.default_rng(k)
    lm = lm_of(rng, 2)
    case = Case(rng, k, 6, LENGTHS)
    expected = case.core(lm, "score", 0.8)
    assert case.walk(lm, alpha=0.8, is_best=True)[1].tolist() == expected.token_ids[:, 0].tolist()
    lm = lm_of(rng, 4)
    found = case.walk(lm, alpha=0.8, is_best=True)[1].tolist()
    assert found == oracle(case, lm, 0.8, 0.0, is_best=True)


@pytest.mark.parametrize("is_best", [False, True])
def test_the_text_s_n_grams(is_best: bool) -> None:
    rng = np.random.default_rng(5)
    lm, case = lm_of(rng, 3), Case(rng, 4, 4, [*LENGTHS, 33, 64, 70])
    found = case.walk(lm, cache=0.6, is_best=is_best)[1].tolist()
    assert found == oracle(case, lm, 1.0, 0.6, is_best)
    assert found != case.walk(lm, is_best=is_best)[1].tolist()


def test_scores_of_every_candidate_after_the_greedy_path() -> None:
    """Row a of a slot has the term of the history that ends in a."""
    rng = np.random.default_rng(8)
    lm, case = lm_of(rng, 4), Case(rng, 3, 4, LENGTHS)
    combined, tokens = case.walk(lm, alpha=0.5)
    for number, text in enumerate(case.texts):
        for step, tokens_of_slot in enumerate(case.candidates[number].tolist()):
            path = tokens[number, : max(step - 1, 0)].tolist()
            last = [[token] for token in case.candidates[number, step - 1].tolist()]
            for a, previous in enumerate(last if step else [[]]):
                history = [*text.tolist(), *path, *previous]
                terms = [lm.log_prob(token, history) for token in tokens_of_slot]
                expected = case.scores[number, step, a] + 0.5 * np.array(terms)
                np.testing.assert_allclose(combined[number, step, a], expected, rtol=1e-5)


def test_long_chains_of_backoffs_and_unknown_tokens() -> None:
    """No n-gram of the LM's text continues the history: every state fails down to the unigrams."""
    lm = NGramLM.train([np.array([0, 1, 2, 3, 4, 5] * 3)], 6, vocab_size=V, smoothing="witten_bell")
    rng = np.random.default_rng(2)
    case = Case(rng, 2, 1, [5])
    case.texts = [np.array([0, 1, 2, 3, 4])]
    case.token_ids[case.rows[0], :5] = case.texts[0]
    case.candidates[:] = 2, 11  # 2 is in the text of the LM, 11 is not
    combined, _ = case.walk(lm)
    expected = case.scores[0, 0, 0] + [lm.log_prob(2, [0, 1, 2, 3, 4]), lm.log_prob(11)]
    expected[1] += lm.log_prob(11, [0, 1, 2, 3, 4]) - lm.log_prob(11)  # with its backoffs
    np.testing.assert_allclose(combined[0, 0, 0], expected, rtol=1e-6)
    case.candidates[:] = 2, V + 3  # padding of the target's vocabulary
    assert case.walk(lm)[1].tolist() == [[2]]


def test_an_lm_of_arpa_text_with_unknown_words(tmp_path: Any) -> None:
    """Token ids that the file lacks are <unk>, which has n-grams of its own."""
    path = tmp_path / "a.arpa"
    path.write_text(
        "\\data\\\nngram 1=5\nngram 2=3\n\n"
        "\\1-grams:\n-99\t<s>\t-0.3\n-1\t</s>\n-0.6\t<unk>\t-0.2\n"
        "-0.5\t1\t-0.4\n-0.9\t2\t-0.1\n\n\\2-grams:\n-0.2\t<s> 1\n-0.3\t1 <unk>\n-0.4\t<unk> 2\n\n"
        "\\end\\\n"
    )
    lm = read_lm(path, vocab_size=V)
    case = Case(np.random.default_rng(4), 5, 6, LENGTHS)
    for objective, is_best in (("greedy_walk", False), ("score", True)):
        expected = case.core(lm, objective, 1.0).token_ids[:, 0].tolist()
        assert case.walk(lm, is_best=is_best)[1].tolist() == expected


def test_rows_without_a_request_are_not_written_and_masked_candidates_not_chosen() -> None:
    rng = np.random.default_rng(6)
    lm, case = lm_of(rng, 3), Case(rng, 4, 3, [9, 9])
    case.scores[:, 0, :, 1] = -np.inf
    case.scores[:, 1, :, 1:] = -np.inf
    case.rows[1] = -1
    for is_best in (False, True):
        tokens = case.walk(lm, is_best=is_best)[1]
        assert tokens[1].tolist() == [0, 0, 0]
        assert tokens[0, 0] != case.candidates[0, 0, 1]
        assert tokens[0, 1] == case.candidates[0, 1, 0]


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lattice_bpd_vllm.lattice_walk import _walk_kernel

kinds = ["*i64", "*fp32", "*i64", "*i32", "*i32", "*i64", "*fp32", "*i32", "*i32", "*fp32", "i32",
         "fp32", "fp32", "*fp32", "*i32", "*i64"]
for arch, k, is_best, has_cache in ((80, 1, 0, 0), (90, 16, 0, 1), (90, 16, 1, 0), (80, 4, 1, 1)):
    values = (7, k, k, 1024, 4, 1 << 20, 20, bool(is_best), bool(has_cache))
    names = _walk_kernel.arg_names
    signature = dict(zip(names, kinds + ["constexpr"] * len(values), strict=True))
    constants = {(len(kinds) + i,): value for i, value in enumerate(values)}
    source = ASTSource(_walk_kernel, signature, constants)
    assert triton.compile(source, target=GPUTarget("cuda", arch, 32)).asm["cubin"]
"""


def test_the_kernel_compiles_for_gpus() -> None:
    """Triton has the compiler with it; this needs no GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", COMPILE]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_time_of_a_walk(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints milliseconds; scripts/check_gpu.sh runs it."""
    from triton.testing import do_bench

    rng = np.random.default_rng(1)
    texts = [rng.zipf(1.3, 200_000) % 50_000]
    lm = DeviceLM.of(NGramLM.train(texts, 4, vocab_size=50_000, smoothing="witten_bell"), DEVICE)
    for batch in (1, 8, 64):
        token_ids = torch.tensor(rng.choice(texts[0], (batch, 2048)), device=DEVICE).int()
        candidates = torch.tensor(rng.choice(50_000, (batch, 7, 16)), device=DEVICE)
        scores = torch.randn(batch, 7, 16, 16, device=DEVICE)
        rows = torch.arange(batch, device=DEVICE)
        for cache in (0.0, 0.5):
            call = partial(
                walk, lm, candidates, scores, token_ids, rows, rows * 0 + 2000, cache=cache
            )
            with capsys.disabled():
                print(f"\nwalk, {batch} requests, cache {cache}: {do_bench(call):.3f} ms")


# The seam in vLLM's own sources, where vLLM is installed; test_vllm_runner_v2.py has a stand-in
class Speculator:
    """`DFlash2Speculator`: its own buffers, and a model that gives candidates and scores."""

    draft_logits: Any = None
    enable_adaptive_verification = use_fp64_gumbel = False

    def fill(self, case: Case, sampler: Any) -> None:
        batch, steps, k = case.candidates.shape
        self.num_speculative_steps, self.top_k, self.num_query_per_req = steps, k, steps + 1
        self.candidate_sampler = sampler(batch + 2, steps, k, DEVICE)
        self.sample_indices = torch.arange(batch * steps, device=DEVICE)
        lengths = torch.tensor([len(text) for text in case.texts])[:, None] + torch.arange(steps)
        rows = torch.tensor(case.rows)[:, None].expand(batch, steps)
        # of two more requests than there are: padding, as in a captured graph
        pad = torch.full((2 * steps,), -1)
        self.sample_pos = torch.cat([lengths.flatten(), pad + 1]).to(DEVICE)
        self.sample_idx_mapping = torch.cat([rows.flatten(), pad]).int().to(DEVICE)
        self.temperature = torch.zeros(batch + 2, device=DEVICE)
        self.seeds = torch.zeros(batch + 2, dtype=torch.int64, device=DEVICE)
        self.draft_tokens = torch.zeros(batch + 2, steps, dtype=torch.int64, device=DEVICE)
        hidden = torch.zeros(batch * steps, 1, device=DEVICE)
        self._run_model = lambda *_: hidden
        candidates = torch.tensor(case.candidates, device=DEVICE).flatten(0, 1)
        self.model = SimpleNamespace(
            compute_candidates=lambda _: (candidates, candidates.float()),
            model=SimpleNamespace(candidate_selector=None),
        )
        self._score_candidates = lambda *_: torch.tensor(case.scores, device=DEVICE)


@pytest.fixture
def init(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's `init_speculator` of a case: its walk of DFlash2, whose model gives the lattices."""
    from triton.backends import Backend, backends
    from triton.runtime.interpreter import InterpreterBuilder

    if DEVICE == "cpu":  # its build for CPUs has no Triton for them: the interpreter
        driver: Any = SimpleNamespace(is_active=lambda: True)
        monkeypatch.setitem(backends, "cpu", Backend(None, driver))
        splat = InterpreterBuilder.create_splat

        def create_splat(self: Any, kind: Any, value: Any) -> Any:
            """Booleans stay booleans: that of Triton 3.9 makes them int32."""
            wide = splat(self, kind, value)
            wide.data = wide.data.astype(value.data.dtype)
            return wide

        monkeypatch.setattr(InterpreterBuilder, "create_splat", create_splat)
    spec_decode = pytest.importorskip("vllm.v1.worker.gpu.spec_decode", reason="needs vLLM")
    dflash2 = pytest.importorskip("vllm.v1.worker.gpu.spec_decode.dflash2.speculator")
    runner_v2.register()
    for name in ("draft_logits", "enable_adaptive_verification", "use_fp64_gumbel"):
        monkeypatch.setattr(
            dflash2.DFlash2Speculator, name, getattr(Speculator, name), raising=False
        )

    def make(case: Case, **options: Any) -> Any:
        monkeypatch.setattr(
            dflash2.DFlash2Speculator, "__init__",
            lambda self, *_: Speculator.fill(self, case, dflash2.CandidateSampler),
        )  # fmt: skip
        token_ids = torch.tensor(case.token_ids, device=DEVICE)
        states = SimpleNamespace(all_token_ids=SimpleNamespace(gpu=token_ids))
        config = SimpleNamespace(
            additional_config={"lattice_bpd": options},
            speculative_config=SimpleNamespace(
                method="dflash", use_ngram=lambda: False,
                draft_model_config=SimpleNamespace(architectures=["DFlash2DraftModel"]),
            ),
            model_config=SimpleNamespace(get_vocab_size=lambda: V),
        )  # fmt: skip
        return spec_decode.init_speculator(config, torch.device(DEVICE), states)

    return make


def test_drafts_of_vllm_s_own_walk_have_the_term(init: Any, tmp_path: Path) -> None:
    """They are those of the LM's own probabilities."""
    rng = np.random.default_rng(3)
    lm, case = lm_of(rng, 4), Case(rng, 4, 3, LENGTHS)
    lm.save(tmp_path / "a.lm")
    for extra, is_best, cache in (
        ({"sources": ["lm"]}, False, 0.0), ({}, False, 0.5), ({"draft": "best"}, True, 0.5),
    ):  # fmt: skip
        speculator = init(case, lm=str(tmp_path / "a.lm"), alpha=0.7, **extra)
        speculator._generate_draft(len(case.texts), 0, None, None, None)
        drafts = speculator.draft_tokens.cpu().tolist()
        assert drafts[: len(case.texts)] == oracle(case, lm, 0.7, cache, is_best)
        assert drafts[len(case.texts) :] == [[0] * 3] * 2
    assert drafts[:6] != case.core(lm, "greedy_walk", 0.0).token_ids[:, 0].tolist()


def test_the_rejection_sampler_gets_the_rows_that_the_walk_sampled_from(
    init: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(4)
    lm, case = lm_of(rng, 4), Case(rng, 4, 3, LENGTHS)
    lm.save(tmp_path / "a.lm")
    speculator = init(case, lm=str(tmp_path / "a.lm"))
    speculator.draft_logits = torch.full((len(case.token_ids), 3, V), -np.inf, device=DEVICE)
    speculator._generate_draft(len(case.texts), 0, None, None, None)
    combined, tokens = case.walk(lm, alpha=0.5, cache=0.5)
    q = speculator.draft_logits.cpu().numpy()
    for number, (row, candidates) in enumerate(zip(case.rows, case.candidates, strict=True)):
        previous = 0
        for step in range(3):
            expected = np.full(V, -np.inf, np.float32)
            expected[candidates[step]] = combined[number, step, previous]
            np.testing.assert_array_equal(q[row, step], expected)
            previous = int(np.flatnonzero(candidates[step] == tokens[number, step])[0])
