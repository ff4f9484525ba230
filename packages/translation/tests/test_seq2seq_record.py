"""Records of encoder-decoders: replays are live decoding, call for call."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from replays import check_replay

from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import generate
from lattice_bpd_kim2024.evaluate import Recording
from lattice_bpd_kim2024.record.heads import record_sources
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_translation.target import Seq2SeqTarget
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
    target, heads, texts, _, lm, record = recorded
    options = DraftConfig(top_k=6, max_nodes=9, num_drafts=3, alpha=0.7)
    replayed = check_replay(
        Recording(record), name, Rescorers(lm), options,
        lambda number, drafter: generate(
            target, texts[number], drafter, heads=heads, max_new_tokens=LIMIT
        ),
    )  # fmt: skip
    assert replayed.block_efficiency > 1.2


def test_a_folder_holds_the_texts_of_memory(recorded, tmp_path):
    pytest.importorskip("pyarrow")
    from lattice_bpd_kim2024.record.files import read_record
    from lattice_bpd_kim2024.record.write import Prompt, RecordOptions, write_record

    target, heads, texts, _, _, record = recorded
    prompts = [Prompt(source, str(number)) for number, source in enumerate(texts)]
    options = RecordOptions(top_k=8, max_new_tokens=LIMIT, batch_size=3, texts_per_shard=7)
    manifest = write_record(tmp_path, target, prompts, options, heads=heads, task="translation")
    assert manifest.complete
    assert (manifest.num_slots, manifest.stop_token_ids) == (SLOTS, [STOP])
    read = read_record(tmp_path).texts
    for text, other, source in zip(read, record, texts, strict=True):
        assert text.model_input == other.model_input == source
        assert text.prompt.tolist() == target.decoder_prompt
        assert (text.limit, text.finish, text.name) == (other.limit, other.finish, other.name)
        for name in ("output", "token_ids", "scores", "entropies", "margins"):
            np.testing.assert_array_equal(getattr(text, name), getattr(other, name))
    pieces = [1] * len(prompts)
    write_record(
        tmp_path, target, prompts, options, heads=heads, task="translation",
        on_text=lambda done, total: pieces.append(total - done),
    )  # fmt: skip
    assert pieces[len(prompts) :] == [0]  # nothing is left to record
