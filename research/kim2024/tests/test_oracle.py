"""The drafts of hindsight: lossless, and no path of the lattice is better."""

import numpy as np

from blockwise_models import VOCAB, model_of, plain_greedy, small_lm
from lattice_bpd.decode import generate
from lattice_bpd.decode.drafters.chain import ArgmaxDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd_kim2024.live.oracle import OracleDrafter


def test_it_drafts_the_targets_tokens_that_are_in_the_lattice() -> None:
    model, prompt = model_of("gpt2"), [1, 2, 3]
    wanted = plain_greedy(model, prompt, 12)
    result = decode(model, prompt, OracleDrafter(wanted, top_k=VOCAB), max_new_tokens=11)
    # k = V: the lattice holds everything, so each call gives H + 1 tokens
    assert result.token_ids == wanted[:11]
    assert result.stats.accept_lengths == [4, 4]


def test_no_path_of_its_lattice_is_better() -> None:
    model, rng, calls = model_of("trained"), np.random.default_rng(5), [0, 0, 0]
    for _ in range(30):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 16)).tolist()
        wanted = plain_greedy(model, prompt, 24)
        results = [
            decode(model, prompt, OracleDrafter(wanted), max_new_tokens=24),
            decode(model, prompt, ArgmaxDrafter(), max_new_tokens=24),
            generate(model, prompt, "ngram", lm=small_lm(), max_new_tokens=24),
        ]
        assert [one.token_ids for one in results] == [wanted] * 3
        calls = [
            sum(pair)
            for pair in zip(calls, [one.stats.target_calls for one in results], strict=True)
        ]
    assert calls[0] < min(calls[1:])
