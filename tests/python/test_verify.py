"""Verification: worked examples with a fake target, then a real one's cache."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, model_of, plain_greedy
from lattice_bpd.verify import accept_lengths, check_cache, greedy_tokens, verify_drafts


class CountingCache:
    """Remembers what a cache was asked to do."""

    is_croppable = True

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.calls.append(("repeat", repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.calls.append(("select", indices.tolist()))

    def crop(self, length: int) -> None:
        self.calls.append(("crop", length))


class PlusOneTarget:
    """A target that always continues token t with t+1; its hidden state is the token itself."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def __call__(self, input_ids: torch.Tensor, cache: CountingCache):  # noqa: ARG002
        self.seen.append(input_ids.tolist())
        logits = torch.nn.functional.one_hot((input_ids + 1) % 10, 10).float()
        hidden = input_ids.unsqueeze(-1).float()
        return type("Output", (), {"logits": logits, "hidden": hidden})()


def test_longest_accepted_prefix_wins():
    # exact token 3; the target would write 4 5 6 7
    target, cache = PlusOneTarget(), CountingCache()
    drafts = torch.tensor([[4, 9, 6], [4, 5, 0], [9, 5, 6]])
    found = verify_drafts(target, cache, 3, drafts)
    assert (found.row, found.accept_length, found.token_ids) == (1, 2, [4, 5, 6])
    assert found.hidden.tolist() == [5.0]  # the state that predicted the bonus token 6
    assert target.seen == [[[3, 4, 9, 6], [3, 4, 5, 0], [3, 9, 5, 6]]]  # one call
    assert cache.calls == [("repeat", 3), ("select", [1]), ("crop", -1)]


def test_first_row_wins_ties_and_equal_rows_are_read_once():
    target, cache = PlusOneTarget(), CountingCache()
    drafts = torch.tensor([[9, 9], [9, 9], [4, 9], [4, 8], [4, 9]])
    found = verify_drafts(target, cache, 3, drafts)
    assert (found.row, found.accept_length) == (2, 1)
    assert target.seen == [[[3, 9, 9], [3, 4, 9], [3, 4, 8]]]


def test_whole_draft_and_empty_draft():
    target, cache = PlusOneTarget(), CountingCache()
    assert verify_drafts(target, cache, 3, torch.tensor([[4, 5]])).token_ids == [4, 5, 6]
    assert verify_drafts(target, cache, 3, torch.empty((1, 0), dtype=torch.int64)).token_ids == [4]
    assert cache.calls == []  # one row: nothing to copy; all accepted: nothing to forget


def test_accept_lengths_stop_at_the_first_difference():
    drafts = torch.tensor([[5, 7, 9], [5, 7, 2], [1, 7, 2]])
    predictions = torch.tensor([[5, 7, 2, 8]] * 3)
    assert accept_lengths(drafts, predictions).tolist() == [2, 3, 0]


def test_greedy_takes_the_smallest_id_of_a_tie():
    assert greedy_tokens(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])).tolist() == [1, 0]


def test_nan_logits_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        greedy_tokens(torch.tensor([[0.0, float("nan")]]))


@pytest.mark.parametrize("shape", [(0, 3), (3,), (1, 2, 3)])
def test_wrong_draft_shapes_are_refused(shape):
    drafts = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"drafts has shape .*expected \(drafts, slots\)"):
        verify_drafts(PlusOneTarget(), CountingCache(), 3, drafts)


def test_a_cache_that_forgets_is_refused():
    cache = CountingCache()
    check_cache(cache)
    cache.is_croppable = False
    with pytest.raises(ValueError, match="cannot be rolled back"):
        check_cache(cache)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "trained"])
def test_cache_after_verification_is_the_cache_of_the_accepted_tokens(kind):
    model, prompt = model_of(kind), [3, 1, 4, 1, 5]
    wanted = plain_greedy(model, prompt, 6)
    with torch.inference_mode():
        output = model(torch.tensor([prompt]), use_cache=True)
        wrong = [(wanted[2] + 1) % VOCAB, 0, 0]
        drafts = torch.tensor([[0, 0, 0, 0], [wanted[1], *wrong], [1, 2, 3, 4]])
        found = verify_drafts(model, output.cache, wanted[0], drafts)
        fresh = model(torch.tensor([prompt + wanted[:2]]), use_cache=True)
    assert found.token_ids == wanted[1:3]
    assert output.cache.get_seq_length() == len(prompt) + 2
    for kept, expected in zip(output.cache.layers, fresh.cache.layers, strict=True):
        torch.testing.assert_close(kept.keys, expected.keys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kept.values, expected.values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.hidden, fresh.hidden[0, -1], rtol=1e-4, atol=1e-4)
