"""Texts to token ids of one model, the same for data files, for training and for scoring.

A prompt is rendered as the engines render it: by the tokenizer's chat template where there is one (a text is then one
user message), else the texts joined by a blank line. A response is tokenised as a whole, never in pieces, and ends with
the end token.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from assay.errors import ConfigError

Template = Literal["auto", "chat", "plain"]


class TextEncoder:
    """The `Encoder` of a tokenizer."""

    def __init__(self, tokenizer: Any, *, template: Template = "auto", literal: bool = False) -> None:
        """An encoder.

        Args:
            tokenizer: of transformers.
            template: that of the engine: `chat`, `plain`, or `auto` for the template where there is one.
            literal: whether a special token that a response spells out stays ordinary text (what judges need, since a
                policy can write anything) instead of becoming the special token.

        Raises:
            ConfigError: `chat` without a template, or no end token.
        """
        self.tokenizer = tokenizer
        has_template = getattr(tokenizer, "chat_template", None) is not None
        if template == "chat" and not has_template:
            raise ConfigError("template: the tokenizer has no chat template; use template = 'plain'")
        self.chat = has_template and template != "plain"
        if tokenizer.eos_token_id is None:
            raise ConfigError("tokenizer: it has no end token; set eos_token in tokenizer_config.json")
        self.end_id = int(tokenizer.eos_token_id)
        self._template: Template = template
        self._response: dict[str, Any] = {"split_special_tokens": True} if literal else {}
        self._fingerprint: str | None = None

    def literal(self) -> TextEncoder:
        """The same encoder for texts that nobody trusts."""
        return TextEncoder(self.tokenizer, template=self._template, literal=True)

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary, tokenisation and template."""
        if self._fingerprint is None:
            self._fingerprint = self._hash()
        return self._fingerprint

    def _hash(self) -> str:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        made = backend.to_str() if backend is not None else repr(sorted(self.tokenizer.get_vocab().items()))
        template = self.tokenizer.chat_template if self.chat else ""
        text = f"{made}\0{template}\0{self.end_id}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def __call__(self, prompt: Any, response: str, /) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(prompt ids, response ids with the end token)."""
        return self.prompt(prompt), (*self.response(response), self.end_id)

    def prompt(self, prompt: Any) -> tuple[int, ...]:
        """The ids of a prompt, a text or a list of messages, ready to be answered.

        Raises:
            ConfigError: it is neither, or the template refuses it.
        """
        messages = messages_of(prompt)
        if not self.chat:
            text = "\n\n".join(message["content"] for message in messages)
            return tuple(map(int, self.tokenizer(text, add_special_tokens=True)["input_ids"])) if text else ()
        goes_on = messages[-1]["role"] == "assistant"
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
            )
        except Exception as error:  # noqa: BLE001, RUF100 - templates are programs of the model's author (jinja)
            raise ConfigError(f"prompt: the chat template refuses it: {error}") from error
        return self.ids(text)

    def response(self, text: str) -> tuple[int, ...]:
        """The ids of a response without the end token."""
        return tuple(map(int, self.tokenizer(text, add_special_tokens=False, **self._response)["input_ids"]))

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text alone."""
        return tuple(map(int, self.tokenizer(text, add_special_tokens=False)["input_ids"]))

    def offsets(self, response: str) -> tuple[tuple[int, int], ...]:
        """The characters of each response token, the end token's empty; see `Encoder.offsets`."""
        end = (len(response), len(response))
        if getattr(self.tokenizer, "is_fast", False):
            asked = {"add_special_tokens": False, "return_offsets_mapping": True, **self._response}
            found = self.tokenizer(response, **asked)["offset_mapping"]
            return (*((int(a), int(b)) for a, b in found), end)
        ids = self.response(response)
        edges = [0, *(min(len(self.tokenizer.decode(ids[: k + 1])), len(response)) for k in range(len(ids)))]
        return (*((edges[k], max(edges[k], edges[k + 1])) for k in range(len(ids))), end)


def messages_of(prompt: Any) -> list[dict[str, str]]:
    """A prompt as messages: a text is one user message. Raises `ConfigError` for anything else."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    found: list[dict[str, str]] = []
    if isinstance(prompt, Sequence) and prompt:
        for message in cast("Sequence[Any]", prompt):
            fields = cast("Mapping[str, Any]", message) if isinstance(message, Mapping) else {}
            role, content = fields.get("role"), fields.get("content")
            if not isinstance(role, str) or not isinstance(content, str):
                raise ConfigError(f"prompt: a message has a role and a content, both texts; found {message!r:.100}")
            found.append({"role": role, "content": content})
        return found
    raise ConfigError(f"prompt: a text or a list of messages is expected; found {prompt!r:.100}")
