"""Records of encoder-decoders: replays are live decoding, call for call."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.evaluate import Recording
from lattice_bpd.evaluate.lab.drafter_search import DrafterSearch
from lattice_bpd.evaluate.record.seq2seq import record_sources
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.strategies import STRATEGIES
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd.verify import Seq2SeqTarget
from seq2seq_models import KINDS, STOP, VOCAB, model_of, plain_greedy, sources

SLOTS, LIMIT = 4, 20


class KnownHeads:
    """Heads that know greedy's output of each source, and err at random."""

    num_slots = SLOTS

    def __init__(self, outputs: dict[tuple[int, ...], list[int]]) -> None:
        self.outputs = outputs

    def read_states(self, states):
        rows = [self._read(state) for state in states]
        return torch.stack(rows)

    def _read(self, state):
        output = self.outputs[tuple(state.source.token_ids[0])]
        position = len(state.new_tokens)
        generator = torch.Generator().manual_seed(1000 * len(output) + position)
        logits = torch.randn(SLOTS, VOCAB, generator=generator)
        for slot, token in enumerate(output[position : position + SLOTS]):
            logits[slot, token] += 3.0
        return logits


def stop_after(output: list[int]) -> list[int]:
    return output[: output.index(STOP) + 1] if STOP in output else output


@pytest.fixture(scope="module", params=KINDS)
def recorded(request):
    """A target, its heads, sources, greedy outputs by transformers, an LM, and the record."""
    target = Seq2SeqTarget(model_of(request.param))
    texts = sources(18, seed=3)
    outputs = [stop_after(plain_greedy(target.base, text, LIMIT)) for text in texts]
    heads = KnownHeads(dict(zip(map(tuple, texts), outputs, strict=True)))
    lm = NGramLM.train(
        [[*target.decoder_prompt, *output] for output in outputs], 3, vocab_size=VOCAB,
        smoothing="witten_bell",
    )  # fmt: skip
    record = record_sources(target, heads, texts, top_k=8, max_new_tokens=LIMIT)
    return target, heads, texts, outputs, lm, record


def test_a_record_has_the_greedy_outputs(recorded):
    _, heads, texts, outputs, _, record = recorded
    assert [text.output.tolist() for text in record] == outputs
    assert [text.name for text in record] == [str(number) for number in range(len(texts))]
    for text in record:
        steps = len(text.output)
        assert text.token_ids.shape == text.scores.shape == (steps, SLOTS, 8)
        assert text.entropies.shape == (steps, SLOTS + 1)
        assert (text.margins > -1e-3).all()
        assert (text.entropies >= 0).all()
    assert heads.num_slots == Recording(record).num_slots


@pytest.mark.parametrize("name", ["bpd", "ngram_1best", "p_best_ngram", "chain", "tree", "oracle"])
def test_a_replay_is_live_decoding(recorded, name):
    target, heads, texts, outputs, lm, record = recorded
    strategy, rescorers = STRATEGIES[name], Rescorers(lm)
    options = DraftConfig(top_k=6, max_nodes=9, num_drafts=3, alpha=0.7)
    replayed = Recording(record).replay(strategy, rescorers, options)
    for number, (source, output) in enumerate(zip(texts, outputs, strict=True)):
        drafter = strategy.make_drafter(rescorers, output, options)
        live = generate(target, source, drafter, heads=heads, max_new_tokens=LIMIT)
        assert live.token_ids == output
        assert live.stats.target_calls == replayed.calls[number]
        mine = replayed.texts == number
        assert live.stats.accept_lengths == replayed.accepted[mine].tolist()
        assert live.stats.verified_tokens == replayed.nodes[mine].sum()
    assert replayed.block_efficiency > 1.2


def test_records_are_tuned_like_those_of_causal_models(recorded):
    _, _, _, _, lm, record = recorded
    costs = {0: 1.0, 72: 1.01}  # drafts cost next to nothing
    tuned = DrafterSearch({"lm": lm}, costs).run(Recording(record))
    assert tuned.choice.name != "greedy"
    assert tuned.over_greedy.gain.value > 0
    smaller = Recording(record).with_slots(2)
    assert smaller.num_slots == 2


def test_what_cannot_be_recorded_is_refused():
    target, heads = Seq2SeqTarget(model_of("bart")), KnownHeads({})
    with pytest.raises(ValueError, match="record_sources: 0 sources"):
        record_sources(target, heads, [])
    with pytest.raises(ValueError, match=f"top_k {VOCAB + 1}; expected one source or more"):
        record_sources(target, heads, [[5]], top_k=VOCAB + 1)
    with pytest.raises(ValueError, match="heads None"):
        record_sources(target, None, [[5]])


def test_blockwise_heads_of_an_encoder_decoder_are_recorded():
    target = Seq2SeqTarget(model_of("marian"))
    torch.manual_seed(0)
    heads = BlockwiseHeads(32, num_heads=3)
    (text,) = record_sources(target, heads, [[5, 6, 7]], top_k=4, max_new_tokens=9)
    hidden = []
    ids = torch.tensor([[*target.decoder_prompt, *text.output[:-1].tolist()]])
    with torch.inference_mode():
        encoded = target.base.get_encoder()(input_ids=torch.tensor([[5, 6, 7]]))
        decoded = target.base.get_decoder()(
            input_ids=ids, encoder_hidden_states=encoded.last_hidden_state
        )
        hidden = decoded.last_hidden_state[0, len(target.decoder_prompt) - 1 :]
        logits = target.embedding(heads(hidden)).numpy()
    assert logits.shape == (len(text.output), 2, VOCAB)
    np.testing.assert_allclose(text.scores, -np.sort(-logits, axis=-1)[..., :4], atol=1e-4)
