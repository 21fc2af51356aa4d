"""Chat templates: from messages to token rows, with every token known to be trained or not.

    template = ChatTemplate(tokenizer)
    row = template.encode(prompt, "4")        # trained: the tokens of "4" and the token that ends a turn; no others

Prompt and answer are tokenised apart, so the border between them is exact and the prompt's ids are those a sampler saw.
Both together must render to the template's own text, byte for byte, or the row is refused.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from thumbwheel.batches import TokenRow
from thumbwheel.errors import DataError, ModelError, explain
from thumbwheel.records import Message, Prompt, digest_of

PLAIN_VERSION = "plain-1"


class ChatTemplate:
    """Renders messages with the tokenizer's own template, or plainly where it has none (a base model).

    `hash` names the template's text and special tokens; a model is served with the template it was trained with.
    `end_id` is the token that ends an assistant's turn; `stop_ids` all tokens that end a sampled answer.
    Raises ModelError if the tokenizer has no end-of-sequence token.
    """

    def __init__(self, tokenizer: Any, *, stop_ids: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        if tokenizer.eos_token_id is None:
            raise ModelError("The tokenizer has no end-of-sequence token, so no answer could be taught to end.")
        text = getattr(tokenizer, "chat_template", None)
        if isinstance(text, dict):
            text = text.get("default") or next(iter(text.values()))
        self.text: str | None = text
        self.bos_id: int | None = tokenizer.bos_token_id
        self._adds_bos = self.bos_id is not None and tokenizer("a")["input_ids"][:1] == [self.bos_id]
        self._closing, self.end_id = self._find_closing()
        self.stop_ids = tuple(sorted({self.end_id, tokenizer.eos_token_id, *stop_ids}))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the template's text and the special tokens."""
        special = {key: str(value) for key, value in self.tokenizer.special_tokens_map.items()}
        return digest_of([self.text if self.text is not None else PLAIN_VERSION, special])

    @cached_property
    def tokenizer_hash(self) -> str:
        """SHA-256 of everything that decides how text becomes ids."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            vocabulary = sorted(self.tokenizer.get_vocab().items())
            return digest_of([type(self.tokenizer).__name__, vocabulary])
        state = json.loads(backend.to_str())
        state.pop("truncation", None)  # set by calls, not part of the tokenizer
        state.pop("padding", None)
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode("utf-8")).hexdigest()

    def difference(self, trained_with: str | None) -> str:
        """A message that shows how this template differs from the one a version was trained with."""
        before = (trained_with or PLAIN_VERSION).splitlines()
        lines = difflib.unified_diff(before, (self.text or PLAIN_VERSION).splitlines(), "trained", "now", lineterm="")
        shown = "\n".join(lines) or "the special tokens differ, the text does not"
        return f"The chat template is not the one this version was trained with:\n{shown}"

    # ------------------------------------------------------------------ text

    def render(self, messages: Sequence[Message], *, open_answer: bool) -> str:
        """The template's text; `open_answer` ends it where the assistant's answer begins. Raises DataError."""
        if self.text is None:
            return _plain(messages, self.tokenizer.eos_token, open_answer=open_answer)
        try:
            rendered = self.tokenizer.apply_chat_template(
                [_as_dict(message) for message in messages],
                chat_template=self.text,
                tokenize=False,
                add_generation_prompt=open_answer,
            )
        except Exception as error:  # a template is a program of its own and raises what it likes
            raise DataError(f"The chat template refuses these messages: {error}") from error
        return str(rendered)

    def _find_closing(self) -> tuple[str, int]:
        """Text that closes an assistant's turn, and the first special token in it (the end-of-sequence token if none)."""
        question = (Message(role="user", content="question"),)
        opened = self.render(question, open_answer=True)
        whole = self.render((*question, Message(role="assistant", content="answer")), open_answer=False)
        _, found, closing = whole[len(opened) :].rpartition("answer") if whole.startswith(opened) else ("", "", "")
        special = set(self.tokenizer.all_special_ids)
        ids = self.tokenizer(closing, add_special_tokens=False)["input_ids"] if found else []
        end = next((token for token in ids if token in special), self.tokenizer.eos_token_id)
        return (closing if found else ""), int(end)

    # ------------------------------------------------------------------ ids

    def _ids(self, text: str, *, first: bool = False, plain: bool = False) -> list[int]:
        """Ids of a piece of rendered text. `first` opens the sequence and carries its one BOS; `plain` text holds no
        control tokens, so what looks like one is spelt out."""
        if not text:
            return [self.bos_id] if first and self._adds_bos and self.bos_id is not None else []
        options = {"split_special_tokens": True} if plain else {}
        ids: list[int] = list(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])
        if first and self._adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Ids a sampler starts from: the prompt, up to where the answer begins. Raises DataError."""
        return self._turn_ids(self.render(prompt, open_answer=True), prompt, first=True)

    def _turn_ids(self, text: str, messages: Sequence[Message], *, first: bool) -> list[int]:
        """Ids of rendered `messages`. What looks like a control token in their contents is spelt out: nobody but the
        template opens or ends a turn. Raises DataError where such a content cannot be told from the template."""
        ids: list[int] = []
        for message in messages:
            if not any(token in message.content for token in self.tokenizer.all_special_tokens):
                continue
            content = message.content.strip()
            before, found, text = text.partition(content)
            if not found:
                raise DataError(
                    f"A {message.role} message holds a control token, and the template rewrites it. Drop the row."
                )
            ids += self._ids(before, first=first)
            ids += self._ids(content, plain=True)
            first = False
        return ids + self._ids(text, first=first)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, control tokens left out, spaces as they are.

        U+0000, which a model may sample and no record can hold, becomes U+FFFD.
        """
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        return text.replace("\0", "\N{REPLACEMENT CHARACTER}")

    def encode(
        self,
        prompt: Prompt,
        response: Message | str,
        *,
        token_ids: Sequence[int] | None = None,
        tokenizer: str | None = None,
        ended: bool = True,
        name: str = "row",
    ) -> TokenRow:
        """Prompt untrained and shared; answer trained, its end token once. Raises DataError naming the row.

        `token_ids` are the ids really sampled; they are taken as they are when `tokenizer` (a hash) is this one's.
        `ended=False` is an answer that was cut off: it gets no end token.
        """
        opened = self.prompt_ids(prompt)
        if token_ids and tokenizer == self.tokenizer_hash:
            answer = list(token_ids)
        else:
            message = Message(role="assistant", content=response) if isinstance(response, str) else response
            answer = self._answer_ids(self._answer_text(tuple(prompt), message, name), message, ended=ended)
        if not opened:
            raise DataError(f"The prompt of {name} renders to no token at all, so nothing predicts its answer.")
        if not answer:
            raise DataError(f"The answer of {name} has no token to train on.")
        return _row([(opened, False), (answer, True)], shared=len(opened))

    def encode_talk(self, messages: Sequence[Message], *, name: str = "row") -> TokenRow:
        """A whole conversation: every assistant turn trained, with its end token; user, system and tool turns never.

        Raises DataError naming the row where a later turn changes how an earlier one is rendered.
        """
        pieces: list[tuple[list[int], bool]] = []
        done = ""
        read = shared = 0
        for index, message in enumerate(messages):
            if message.role != "assistant" or index == 0:
                continue
            before = tuple(messages[:index])
            opened = self.render(before, open_answer=True)
            if not opened.startswith(done):
                raise DataError(_changed(name, f"turns before message {index}"))
            new = self._turn_ids(opened[len(done) :], messages[read:index], first=not done)
            read = index + 1
            pieces.append((new, False))
            shared = shared or len(pieces[0][0])
            body = self._answer_text(before, message, name)
            pieces.append((self._answer_ids(body, message, ended=True), True))
            done = opened + body + self._closing_up_to_end
        if not pieces:
            raise DataError(f"The conversation of {name} has no assistant turn after a prompt to train on.")
        return _row(pieces, shared=shared)

    @cached_property
    def _closing_up_to_end(self) -> str:
        end = str(self.tokenizer.convert_ids_to_tokens(self.end_id))
        head, found, _ = self._closing.partition(end)
        return head + found

    def _answer_text(self, prompt: tuple[Message, ...], message: Message, name: str) -> str:
        """What the template puts between the opened prompt and the closing of the turn."""
        opened = self.render(prompt, open_answer=True)
        whole = self.render((*prompt, message), open_answer=False)
        if not whole.startswith(opened) or not whole.endswith(self._closing):
            raise DataError(_changed(name, "the prompt"))
        body = whole[len(opened) : len(whole) - len(self._closing)]
        if message.content.strip() not in body:
            raise DataError(_changed(name, "the answer"))
        return body

    def _answer_ids(self, body: str, message: Message, *, ended: bool) -> list[int]:
        ids = self._ids(body, plain=not message.tool_calls)
        return [*ids, self.end_id] if ended else ids


def fit(row: TokenRow, *, max_length: int, overlong: str, bos_id: int | None = None) -> TokenRow | None:
    """The row if it fits `max_length` tokens; otherwise by policy: None (`drop`), its first tokens (`keep_start`), or its
    last ones behind its BOS (`keep_end`). No token is ever changed: a cut answer is not made to look complete.

    None also where the cut leaves no trained token.
    """
    extra = len(row) - max_length
    if extra <= 0:
        return row
    if overlong == "drop":
        return None
    if overlong == "keep_start":
        kept = np.arange(max_length)
    else:
        opening = 1 if bos_id is not None and row.ids[0] == bos_id and max_length > 1 else 0
        kept = np.concatenate([np.arange(opening), np.arange(extra + opening, len(row))])
    trained = row.trained[kept].copy()
    trained[0] = False
    if not trained.any():
        return None
    return TokenRow(ids=row.ids[kept], trained=trained, shared=int((kept < row.shared).sum()))


def _changed(name: str, what: str) -> str:
    return explain(
        f"The chat template changes {what} of {name}: prompt and answer do not join to the full rendering.",
        allowed="a template whose rendering only grows at its end",
        next="Drop the row, or give the model a template that keeps every turn as it is.",
    )


def _row(pieces: Sequence[tuple[Sequence[int], bool]], *, shared: int) -> TokenRow:
    ids = np.concatenate([np.asarray(ids, dtype=np.int64) for ids, _ in pieces])
    trained = np.concatenate([np.full(len(ids), wanted, dtype=np.bool_) for ids, wanted in pieces])
    return TokenRow(ids=ids, trained=trained, shared=shared)


def _as_dict(message: Message) -> dict[str, Any]:
    """The OpenAI form, which chat templates are written for."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def _arguments(text: str) -> Any:
    """Parsed where it parses: templates write the arguments as JSON themselves."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _plain(messages: Sequence[Message], eos: str, *, open_answer: bool) -> str:
    """A base model's rendering. A talk that opens with the user opens with bare text, and its answer goes on from there;
    every other turn has its speaker named. It only ever grows at its end.
    """
    bare = 1 if messages[0].role == "user" else 0
    out = messages[0].content if bare else ""
    for index, message in enumerate(messages[bare:], start=bare):
        if message.role != "assistant":
            out += _heading(out, message.role) + message.content
        else:
            out += ("" if bare and index == 1 else _heading(out, "assistant")) + message.content + eos
    return out + _heading(out, "assistant") if open_answer and not (bare and len(messages) == 1) else out


def _heading(before: str, role: str) -> str:
    return ("\n\n" if before else "") + f"{role.capitalize()}:\n"
