"""A target's responses from a running server, many requests at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from lattice_bpd.openai_server import Completion, OpenAIServer, ServerError, ask_all
from lattice_bpd.train.responses.formats import Chat
from lattice_bpd.train.responses.generation import Response
from lattice_bpd.train.responses.prompts import format_prompt

_PROMPT_REFUSED = (400, 413, 422)  # statuses that may be the fault of one prompt
_MOST_REFUSED = 16  # prompts, before the first that is answered


class ServerResponses:
    """Greedy responses of a server, as token ids of the target.

    `/v1/completions` gets the text of a prompt, in which are the chat template and tools.

    Args:
        server: serves the target.
        tokenizer: of the target, of transformers.
        stop_token_ids: the tokenizer's end of text, where it is one of them, else the smallest one,
            ends each response that the model ended; none: nothing is added.
        chat: see `encode_prompt`.
        at_once: most requests that wait for an answer at a time.

    Attributes:
        skipped: responses that cannot be used, by the reason.
    """

    def __init__(
        self,
        server: OpenAIServer,
        tokenizer: Any,
        *,
        stop_token_ids: Collection[int] = (),
        chat: bool = True,
        at_once: int = 64,
    ) -> None:
        self._server, self._tokenizer, self._chat = server, tokenizer, chat
        ends = sorted(stop_token_ids, key=lambda one: (one != tokenizer.eos_token_id, one))
        self._end, self._at_once = ends[:1], at_once
        self.skipped: Counter[str] = Counter()

    def generate(
        self, prompts: Sequence[tuple[Chat, int]], max_new_tokens: int
    ) -> Iterator[Response]:
        """Responses to conversations, each as soon as it is there; none where it cannot be used.

        Args:
            prompts: conversations up to the response, and most tokens of it. More may be appended
                while responses are read.
            max_new_tokens: the same, without the limit of the target's positions.

        Raises:
            ServerError: the server died, or refuses all prompts. What it had answered was yielded.
        """
        answered = refused = 0
        if prompts:
            _ = self._server.model  # once, not by each thread
        for number, result in ask_all(self._ask, prompts, self._at_once):
            if isinstance(result, ServerError):  # because of the prompt
                refused += 1
                if not answered and refused == min(_MOST_REFUSED, len(prompts)):
                    raise result
                self.skipped["refused by the server"] += 1
                continue
            answered += 1
            ids = self._encode(result)
            if ids is None:
                self.skipped["other text after encoding and decoding"] += 1
            else:
                limit = prompts[number][1]
                ended = result.finish != "length" or limit < max_new_tokens
                yield Response(number, ids[: limit + 1], ended)

    def _ask(self, request: tuple[Chat, int]) -> Completion | ServerError:
        """The completion of a prompt and a limit, or why the server refuses this prompt."""
        text = format_prompt(self._tokenizer, request[0], chat=self._chat).text
        try:
            return self._server.complete(self._without_bos(text), request[1])
        except ServerError as error:
            if error.status in _PROMPT_REFUSED:
                return error
            raise

    def _without_bos(self, text: str) -> str:
        """A text without the first token that the server's tokenizer adds as this one does."""
        bos = self._tokenizer.bos_token_id
        if bos is None or self._tokenizer(text)["input_ids"][:2] != [bos, bos]:
            return text
        return text.removeprefix(self._tokenizer.bos_token)

    def _encode(self, completion: Completion) -> list[int] | None:
        """The token ids of a response; None where they do not decode to its text."""
        is_cut = completion.finish == "length"
        text = completion.text.rstrip("\ufffd") if is_cut else completion.text  # half a character
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        decoded = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if decoded != text or "\ufffd" in text or (is_cut and not ids):
            return None
        return ids if is_cut or ids[-1:] == self._end else ids + self._end
