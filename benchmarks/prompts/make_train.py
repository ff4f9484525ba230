"""Compose train.jsonl, the training prompts of the yardstick, from lists and passages of books.

    python benchmarks/prompts/make_train.py books.txt > benchmarks/prompts/train.jsonl

`books.txt` is public-domain prose, paragraphs separated by empty lines; passages that share eight
words in a row with prompts.jsonl are not taken. `train_lists.json` holds everything else.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

FOLDER = Path(__file__).resolve().parent
KINDS = ("writing", "qa", "mathematics", "code", "translation", "summaries", "retrieval", "chat")
LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese")
TRANSLATE = (
    "Translate into {language}: {text}",
    "How do you say this in {language}? {text}",
    'Please translate the following sentence into {language}.\n\n"{text}"',
    "{text}\n\nTranslate this into {language}.",
    "Give a {language} translation of: {text}",
    "What is the {language} version of this sentence, and which word is hard to translate? {text}",
)
IMPLEMENT = (
    "Write {what} in {language}.",
    "Implement {what} in {language} and explain how it works.",
    "I need {what}. Please use {language}.",
    "Show me {what} in {language}, with a short example of how to use it.",
    "Can you code {what} in {language}? Add comments.",
    "{language}: write {what}, and test it on two inputs.",
)
SUMMARIZE = (
    "Summarize the following passage in three sentences.\n\n{text}",
    "{text}\n\nSummarize this text.",
    "What happens in this passage? Answer in about fifty words.\n\n{text}",
    "TL;DR:\n\n{text}",
    "Give the main points of the text below as a list.\n\n{text}",
    "{text}\n\nRetell this in simple modern English.",
    "Write a title and a summary of one paragraph for this text.\n\n{text}",
    "Shorten this passage to half of its length and keep its style.\n\n{text}",
    "Explain to somebody who has not read the book what this scene is about.\n\n{text}",
    "Describe in two sentences what the author says here, and in one how it is said.\n\n{text}",
)
ABOUT_PASSAGE = (
    "Who speaks or acts in this passage, and what do these persons want?",
    "What is the mood of this passage? Quote the words that create it.",
    "Where and when does this take place? Say what the text tells us about it.",
    "Which objects and places does the passage mention?",
    "What do we learn about the main character here?",
    "What has probably happened before this scene?",
    "Is the narrator part of the story? How do you know?",
    "Name one surprising detail and explain it from the text.",
    "What is the cause of the events, according to the passage?",
    "Which sentence is the most important one? Give a reason.",
)
ABOUT_LONG = (
    "List all persons who appear in the text, with what is said about each of them.",
    "Put the events of this text into order, one line for each.",
    "Find three sentences in the text that describe feelings, and say whose feelings they are.",
    "Answer from the text only: what is the conflict, and how does each person see it?",
    "Which places and times are mentioned? Quote the words.",
    "What does the narrator think of the other persons? Support your answer with quotations.",
    "Write down everything that the text says about the surroundings.",
    "Collect what is said about money, property or rank in this text.",
    "What question would you ask the main person after reading this? Explain it with the text.",
)
WITH_CONTEXT = (
    "{text}\n\nQuestion: {question}",
    "Answer the question after this paragraph.\n\n{text}\n\n{question}",
    "{question}\n\nUse this text: {text}",
    "Context: {text}\n\nAnswer in a full sentence: {question}",
    "Text: {text}\n\n{question} Quote the part of the text that tells you.",
)
WITH_DOCUMENTS = (
    "Answer the question with the help of the documents.\n\n{text}\n\nQuestion: {question}",
    "{text}\n\nWhich of the documents answers this question, and what is the answer? {question}",
    "Question: {question}\n\nUse only these search results, and name the one you use.\n\n{text}",
)

TO_ENGLISH = (
    "Translate {language} to English: {text}",
    "Translate {language} to English: {text}",
    "Translate this {language} sentence to English: {text}",
    "Translate into English.\n\n{text}",
    "{text}\n\nTranslate this into English.",
    'What does this mean in English? "{text}"',
    "Please translate from {language} to English, and answer with the translation only.\n\n{text}",
    "Give a natural English translation of this {language} sentence: {text}",
    "{language}: {text}\nEnglish:",
)
SUMMARIZE_NEWS = (
    "Summarize: {text}",
    "Summarize the following article.\n\n{text}",
    "Summarize this news article in two or three sentences.\n\n{text}",
    "{text}\n\nWrite a summary of this article.",
    "Article: {text}\n\nSummary:",
    "{text}\n\nTL;DR",
    "What are the highlights of this report? List three or four.\n\n{text}",
    "Give the gist of this news in at most fifty words: {text}",
)
USE_NEWS = (
    "Write a headline and a first sentence for this article.\n\n{text}",
    "{text}\n\nWho did what, when, where and why? Answer from the article.",
    "List every number in this article and say what it stands for.\n\n{text}",
    "Tell this news to a child of ten years: {text}",
    "Rewrite this article as radio news of four sentences.\n\n{text}",
    "{text}\n\nWrite three questions about this article, with answers.",
    "Which people are mentioned or quoted here, and what is the view of each?\n\n{text}",
    "What does this report leave open? Explain what you would ask the author.\n\n{text}",
)
WITH_PASSAGES = (
    "Answer briefly from these passages.\n\n{text}\n\nQuestion: {question}\nAnswer:",
    "{text}\n\nAnswer from these passages: {question}",
    "Here are some passages of an encyclopedia.\n\n{text}\n\n{question}",
    "Question: {question}\n\n{text}\n\nGive a complete answer, and say which passage supports it.",
)
PASSAGE = ("[{i}] {title}. {text}", "Title: {title}\nText: {text}", "Passage {i} ({title}): {text}")


def word_runs(text: str) -> set[tuple[str, ...]]:
    """All runs of eight words."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 8]) for i in range(len(words) - 7)}


def draw_passages(books: str, forbidden: set[tuple[str, ...]], rng: random.Random) -> Iterator[Any]:
    """Endlessly: a function of a number of words that returns the next passage of that length."""
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", books)]
    taken: set[int] = set()
    while True:
        wanted = yield
        while True:
            first = last = rng.randrange(len(paragraphs))
            words = 0
            while last < len(paragraphs) and words < wanted:
                words += len(paragraphs[last].split())
                last += 1
            chosen = paragraphs[first:last]
            text = "\n\n".join(chosen)
            prose = all(re.match(r"[\"'A-Z].*[.!?\"']$", p) and len(p) > 20 for p in chosen)
            fresh = taken.isdisjoint(range(first, last)) and forbidden.isdisjoint(word_runs(text))
            if prose and fresh and words < 1.3 * wanted:
                taken |= set(range(first, last))
                yield text
                break


class Composer:
    """The lists, a source of passages, and every random choice."""

    def __init__(self, lists: dict[str, list[Any]], books: str, forbidden: set[Any]) -> None:
        self.lists = lists
        self.rng = random.Random(35)
        self._passages = draw_passages(books, forbidden, self.rng)

    def passage(self, least: int, most: int) -> str:
        next(self._passages)
        return str(self._passages.send(self.rng.randint(least, most)))

    def cycle(self, choices: tuple[str, ...], count: int) -> list[str]:
        """Each choice equally often, in random order."""
        repeated = list(choices) * (count // len(choices) + 1)
        self.rng.shuffle(repeated)
        return repeated[:count]

    def mathematics(self) -> list[list[str]]:
        ranges = {
            "a": (11, 40),
            "b": (2, 7),
            "c": (45, 99),
            "d": (5, 12),
            "e": (120, 480),
            "p": (4, 30),
        }
        texts = []
        for task in self.lists["mathematics"] * 3:
            values = {name: self.rng.randint(*span) for name, span in ranges.items()}
            values |= {
                "b2": values["d"] ** 2,
                "even": 2 * values["b"],
                "k": 50 * self.rng.randint(20, 300),
            }
            texts.append([Template(task).safe_substitute(values)])
        return texts

    def code(self) -> list[list[str]]:
        languages = ("Python", "Python", "Python", "JavaScript", "Java", "C++", "Go")
        tasks = self.lists["code"]
        pairs = zip(
            self.cycle(IMPLEMENT, len(tasks)), self.cycle(languages, len(tasks)), strict=True
        )
        texts = [
            [phrase.format(what=what, language=language)]
            for what, (phrase, language) in zip(tasks, pairs, strict=True)
        ]
        return texts + [[text] for text in self.lists["code_other"]]

    def translation(self) -> list[list[str]]:
        work = [
            (text, language)
            for i, text in enumerate(self.lists["translation_en"])
            for language in (LANGUAGES[i % 5], LANGUAGES[(i + 2) % 5])
        ]
        for name in ("de", "fr", "es"):
            work += [(text, "English") for text in self.lists[f"translation_{name}"]]
        work += [(self.passage(25, 45), LANGUAGES[i % 3]) for i in range(18)]
        phrases = self.cycle(TRANSLATE, len(work))
        return [
            [phrase.format(text=text, language=language)]
            for phrase, (text, language) in zip(phrases, work, strict=True)
        ]

    def qa(self) -> list[list[str]]:
        work = [(f["text"], question) for f in self.lists["facts"] for question in f["questions"]]
        work += [(self.passage(90, 200), question) for question in self.cycle(ABOUT_PASSAGE, 48)]
        phrases = self.cycle(WITH_CONTEXT, len(work))
        return [
            [phrase.format(text=text, question=question)]
            for phrase, (text, question) in zip(phrases, work, strict=True)
        ]

    def summaries(self) -> list[list[str]]:
        facts = [f["text"] for f in self.lists["facts"]]
        texts = [self.passage(140, 300) for _ in range(90)]
        texts += [" ".join(self.rng.sample(facts, 2)) for _ in range(20)]
        phrases = self.cycle(SUMMARIZE, len(texts))
        return [[phrase.format(text=text)] for phrase, text in zip(phrases, texts, strict=True)]

    def retrieval(self) -> list[list[str]]:
        texts = []
        for question in self.cycle(ABOUT_LONG, 60):
            passage = self.passage(400, 900)
            first = self.rng.random() < 0.5
            texts.append([f"{question}\n\n{passage}" if first else f"{passage}\n\n{question}"])
        for phrase in self.cycle(WITH_DOCUMENTS, 50):
            documents = self.rng.sample(self.lists["facts"], self.rng.randint(5, 8))
            question = self.rng.choice(self.rng.choice(documents)["questions"])
            lines = [f"[{i}] {f['title']}. {f['text']}" for i, f in enumerate(documents, 1)]
            texts.append([phrase.format(text="\n\n".join(lines), question=question)])
        return texts

    def chat(self) -> list[list[str]]:
        conversations = []
        for first, then, count in (("ask", "follow", 80), ("write", "edit", 32)):
            for i, opening in enumerate(self.cycle(tuple(self.lists[f"chat_{first}"]), count)):
                turns = self.rng.sample(self.lists[f"chat_{then}"], 1 + i % 2)
                while [opening, *turns] in conversations:
                    turns = self.rng.sample(self.lists[f"chat_{then}"], 1 + i % 2)
                conversations.append([opening, *turns])
        return conversations

    def writing(self) -> list[list[str]]:
        return [[text] for text in self.lists["writing"]]

    def without_books(self) -> Iterator[tuple[str, list[str]]]:
        """Prompts of all kinds that need no books: a kind and the turns of each."""
        work = [
            (text, language)
            for language, texts in self.lists["to_english"].items()
            for text in texts
        ]
        for phrase, (text, language) in zip(self.cycle(TO_ENGLISH, len(work)), work, strict=True):
            yield "translation", [phrase.format(text=text, language=language)]
        yield from (("qa", [text]) for text in self.lists["trivia"])
        yield from (("mathematics", [text]) for text in self.lists["word_problems"])
        articles = self.lists["articles"]
        for kind, phrases in (
            ("summaries", SUMMARIZE_NEWS),
            ("summaries", USE_NEWS),
            ("qa", WITH_CONTEXT),
        ):
            for phrase, article in zip(self.cycle(phrases, len(articles)), articles, strict=True):
                yield kind, [phrase.format(**article)]
        yield from (("retrieval", [text]) for text in self.encyclopedia())
        for kind, conversations in self.lists["open_ended"].items():
            yield from ((kind, turns) for turns in conversations)

    def encyclopedia(self) -> Iterator[str]:
        """Questions about passages of one subject, some with passages of other subjects."""
        questions = [
            (group["documents"], question)
            for group in self.lists["encyclopedia"]
            for question in group["questions"]
        ]
        phrases = self.cycle(WITH_DOCUMENTS + WITH_PASSAGES, len(questions))
        for phrase, (documents, question) in zip(phrases, questions, strict=True):
            others = self.rng.sample(self.lists["facts"], self.rng.randint(0, 5 - len(documents)))
            passages = self.rng.sample([*documents, *others], len(documents) + len(others))
            line = self.rng.choice(PASSAGE)
            text = "\n\n".join(line.format(i=i, **passage) for i, passage in enumerate(passages, 1))
            yield phrase.format(text=text, question=question)


def main() -> None:
    lists = json.loads((FOLDER / "train_lists.json").read_text(encoding="utf-8"))
    prompts = (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    forbidden = set().union(*(word_runs(text) for line in prompts for text in texts_of(line)))
    composer = Composer(lists, Path(sys.argv[1]).read_text(encoding="utf-8"), forbidden)
    prompts_of = {kind: getattr(composer, kind)() for kind in KINDS}
    for kind, turns in composer.without_books():
        prompts_of[kind].append(turns)
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        for number, turns in enumerate(prompts_of[kind], 1):
            row: dict[str, Any] = {"id": f"train-{kind}-{number:03d}", "kind": kind}
            if len(turns) > 1:
                row["turns"] = turns
            else:
                row["messages"] = [{"role": "user", "content": turns[0]}]
            rows.append(row)
    composer.rng.shuffle(rows)  # the first rows are of all kinds
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def texts_of(line: str) -> list[str]:
    """The user's texts of a row of a prompts file."""
    row = json.loads(line)
    return row.get("turns") or [message["content"] for message in row["messages"]]


if __name__ == "__main__":
    main()
