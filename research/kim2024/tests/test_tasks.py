"""Tasks: prompts by the paper's templates from files of every format, clear errors, metrics."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import looping_text, model_of
from lattice_bpd import FormatError
from lattice_bpd_kim2024.blockwise import to_drafting
from lattice_bpd_kim2024.cli.evaluate_options import read_prompts
from lattice_bpd_kim2024.tasks import (
    TASKS,
    exact_match,
    find_task,
    measure_perplexity,
    number_match,
    read_task,
    rouge_l,
)

DATA = Path(__file__).resolve().parents[3] / "tests" / "data" / "tasks"


@pytest.mark.parametrize(
    ("task", "file", "prompt", "references"),
    [
        ("squad", "squad.json",
         "question: What is the oracle? context: A lattice holds the best tokens of every head. "
         "The oracle is the path that hindsight would take.",
         ("the path that hindsight would take",)),
        ("samsum", "samsum.csv",
         "Here is a dialogue: Ann: are you ready, Bo?\nBo: nearly\nWrite a short summary!",
         ("Bo is nearly ready.",)),
        ("cnndm", "summaries.jsonl",
         "summarize: The cat sat on the mat all day, and nobody knew why.",
         ("A cat sat on a mat.",)),
        ("xsum", "summaries.jsonl",
         "Summarize: The cat sat on the mat all day, and nobody knew why.",
         ("A cat sat on a mat.",)),
        ("multinews", "summaries.jsonl",
         "Write a summary based on this article: The cat sat on the mat all day, and nobody knew "
         "why.", ("A cat sat on a mat.",)),
        ("newsroom", "summaries.jsonl",
         "Please write a short summary for the following article: The cat sat on the mat all day, "
         "and nobody knew why.", ("A cat sat on a mat.",)),
        ("lambada", "lambada.jsonl",
         "She opened the box, and in the box there was another", ("box",)),
        ("spec_bench", "spec_bench.jsonl", "Write a poem about trees.", ()),
        ("gsm8k", "gsm8k.jsonl",
         "Question: Ann has 3 pears and buys 4. How many has she?\nAnswer:",
         ("3 + 4 = <<3+4=7>>7\n#### 7",)),
        ("humaneval", "humaneval.jsonl", "def add(a, b):\n", ()),
        ("text", "text.txt", "One paragraph of\ntwo lines.", ()),
        ("jsonl", "lambada.jsonl", "She opened the box, and in the box there was another box", ()),
    ],
)  # fmt: skip
def test_tasks_make_the_papers_prompts(task, file, prompt, references):
    first = read_task(find_task(task), DATA / file)[0]
    assert (first.prompt, first.references) == (prompt, references)


def test_tasks_know_names_kinds_and_limits():
    examples = read_task(TASKS["spec_bench"], DATA / "spec_bench.jsonl")
    assert [(example.name, example.kind) for example in examples] == [
        ("81", "writing"),
        ("82", "math"),
    ]
    assert [e.name for e in read_task(TASKS["samsum"], DATA / "samsum.csv", limit=1)] == ["s1"]
    assert len(read_task(TASKS["squad"], DATA / "squad.json")) == 1  # q2 has no answer
    assert [e.prompt for e in read_task(TASKS["text"], DATA / "text.txt")][1] == "Another one."
    with pytest.raises(ValueError, match="task squad has fields of its own"):
        read_task(TASKS["squad"], DATA / "squad.json", field="context")
    with pytest.raises(ValueError, match="limit is 0; expected 1 or more"):
        read_task(TASKS["squad"], DATA / "squad.json", limit=0)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"question": "q"}', r"a.jsonl, line 1: no field 'context'; its .*'question'"),
        ("a.jsonl", '\n{"question": "q", "context": " "}', "line 2: field 'context' is empty"),
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.json", '{"a":\n?}', r"a.json: not JSON \(.*line 2"),
        ("a.json", '{"data": [{"paragraphs": [{}]}]}', "article 1: not SQuAD's form"),
        ("a.json", '[{"question": "q"}]', "item 1: no field 'context'"),
        ("a.csv", "question,context\nq\n", "line 2: another number of values"),
    ],
)
def test_tasks_name_file_and_line_of_what_is_wrong(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises((FormatError, ValueError), match=message):
        read_task(TASKS["squad"], tmp_path / name)


def test_tasks_are_judged():
    answers = [["the Grumman!", "x"], ["no"]]
    assert exact_match(["  grumman\nmore", "yes"], answers) == 50.0
    assert number_match(["so 1,007.", "none"], [["#### 1007"], ["#### 2"]]) == 50.0
    assert exact_match([], []) == 0.0


def test_tasks_rouge_l_is_the_best_of_the_references():
    pytest.importorskip("rouge_score")
    score = rouge_l(["the cat sat"], [["a dog", "the cat stood"]])
    assert score == pytest.approx(100 * 2 / 3)


def test_tasks_perplexity_is_that_of_whole_texts():
    model = model_of("trained")
    texts = [looping_text(20, seed=s).tolist() for s in range(3)] + [[1]]
    expected, count = 0.0, 0
    with torch.inference_mode():
        for text in texts[:3]:
            log_probs = model.base(torch.tensor([text])).logits[0].log_softmax(-1)
            expected -= sum(float(log_probs[i, text[i + 1]]) for i in range(19))
            count += 19
    perplexity = measure_perplexity(to_drafting(model), texts)
    assert perplexity == pytest.approx(torch.tensor(expected / count).exp().item(), rel=1e-4)
    with pytest.raises(ValueError, match="no text of two tokens"):
        measure_perplexity(to_drafting(model), [[1]])


@pytest.mark.parametrize(
    ("task", "file", "count"),
    [
        ("lambada", "lambada/lambada_test.jsonl", 5153),
        ("lambada", "lambada/lambada_openai_context_continuation.jsonl", 5153),
        ("squad", "squad/squad_dev_answerable.jsonl", 2910),
        ("squad", "squad/dev-v2.0-cs224n-split.json", 2910),
        ("samsum", "samsum/samsum_test.jsonl", 799),
        ("cnndm", "cnndm/cnndm_summeval_100.jsonl", 100),
        ("newsroom", "newsroom/newsroom_60.jsonl", 60),
        ("xsum", "xsum/xsum_1000.jsonl", 1000),
        ("humaneval", "humaneval/HumanEval.jsonl.gz", 164),
        ("gsm8k", "gsm8k/test.jsonl", 1319),
    ],
)
def test_tasks_read_real_files(shared_data, task, file, count):
    if not (shared_data / file).is_file():
        pytest.skip(f"no {file} in the shared data")
    examples = read_task(TASKS[task], shared_data / file)
    assert len(examples) == count
    assert all(example.prompt.strip() for example in examples)
    if TASKS[task].metric is not None:
        assert all(example.references for example in examples)


def test_chat_templates_are_not_cut_unless_asked(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = [f"w{number}" for number in range(60)]
    vocabulary = {word: number for number, word in enumerate(["<s>", "<|user|>", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "<|user|>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    plain, chat = " ".join(words), " ".join(["<|user|>", *words, "<|user|>"])
    path = tmp_path / "texts.txt"
    path.write_text(f"{plain}\n\n{chat}\n")

    def lengths(prompt_tokens):
        options = Namespace(limit=None, field=None, prompt_tokens=prompt_tokens)
        prompts = read_prompts("text", path, options, tokenizer)
        return [len(prompt.token_ids) for prompt in prompts]

    assert lengths(None) == [48, 63]
    assert lengths(20) == [20, 20]
