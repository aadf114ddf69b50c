"""Prompts as a reward model was trained on them: an `Encoder` that knows the model's system message and prompt form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.contracts import Candidate
from assay.errors import ConfigError
from assay.training.encoder import messages_of
from assay_prms.spec import ScorerSpec

if TYPE_CHECKING:
    from assay.training.encoder import TextEncoder


class SpecEncoder:
    """The tokenizer's encoder, with prompts in the form that a description asks for."""

    def __init__(self, encoder: TextEncoder, spec: ScorerSpec) -> None:
        """An encoder of `spec`; the fingerprint is that of the encoder behind it."""
        self._encoder = encoder
        self._spec = spec

    @property
    def fingerprint(self) -> str:
        """A hash of the tokenizer and template."""
        return self._encoder.fingerprint

    def __call__(self, prompt: Any, response: str, /) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(prompt ids, response ids with the end token)."""
        return self.prompt(prompt), (*self._encoder.response(response), self._encoder.end_id)

    def prompt(self, prompt: Any) -> tuple[int, ...]:
        """The prompt's ids."""
        spec = self._spec
        if spec.prompt_form is not None:
            form = spec.prompt_form.replace("{bos}", getattr(self._encoder.tokenizer, "bos_token", None) or "")
            text = form.replace("{problem}", problem_of(prompt))
            return tuple(map(int, self._encoder.tokenizer(text, add_special_tokens=True)["input_ids"]))
        if spec.system is not None:
            own = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            if own[0].get("role") != "system":
                prompt = [{"role": "system", "content": spec.system}, *own]
        return self._encoder.prompt(prompt)

    def offsets(self, response: str) -> tuple[tuple[int, int], ...]:
        """The characters of each response token."""
        return self._encoder.offsets(response)

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text alone."""
        return self._encoder.ids(text)


def problem_of(prompt: Any) -> str:
    """The text of the last user message, or the text itself."""
    for message in reversed(messages_of(prompt)):
        if message["role"] == "user":
            return message["content"]
    raise ConfigError("prompt: no user's message is in it")


def conversation(candidate: Candidate) -> Any:
    """What the policy was given before the last turn: a text where that is one user message, else messages."""
    messages = [{"role": m.role, "content": m.content} for m in candidate.task.messages]
    messages += [{"role": turn.role, "content": turn.text} for turn in candidate.rollout.turns[:-1]]
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    return messages
