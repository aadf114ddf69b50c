"""How a question becomes messages: a system text, solved examples in front, a template around it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, field_validator

from assay.component import Options
from assay.contracts import Message
from assay_tasks.split import normalized

PLACE = "{prompt}"


class SolvedExample(Options):
    """One question with the answer that the model should write in this form."""

    prompt: str = Field(min_length=1)
    """The question as it stands in the data; the template is put around it too."""
    answer: str = Field(min_length=1)
    """The answer as the model should write it."""


class FramingOptions(Options):
    """Options that every task source has: what stands around the question."""

    system: str | None = None
    """System message in front of every question; default none (a chat template may then add its own)."""
    template: str = PLACE
    """The user's message; `{prompt}` in it is replaced by the question."""
    examples: tuple[SolvedExample, ...] = ()
    """Solved examples, as turns of user and assistant before the question; they begin every prompt, and an engine that
    shares prefixes computes them once."""

    @field_validator("template")
    @classmethod
    def _has_a_place(cls, template: str) -> str:
        if PLACE not in template:
            raise ValueError(f"the template has no {PLACE}; found {template!r}; write {PLACE} where the question goes")
        return template

    def frame(self, prompt: str, *, system: str | None = None) -> tuple[Message, ...]:
        """The messages for one question; `system` of the row itself goes before the option."""
        head = system if system is not None else self.system
        messages: list[Message] = [] if head is None else [Message(role="system", content=head)]
        for example in self.examples:
            messages.append(Message(role="user", content=self._fill(example.prompt)))
            messages.append(Message(role="assistant", content=example.answer))
        return (*messages, Message(role="user", content=self._fill(prompt)))

    def shows(self, question: str) -> bool:
        """Whether a question is one of the solved examples, and therefore never asked."""
        asked = normalized(question)
        return any(normalized(example.prompt) == asked for example in self.examples)

    def around(self, conversation: Sequence[Message]) -> tuple[Message, ...]:
        """A ready conversation with the system text in front where it has none; template and examples do not apply."""
        if self.system is None or conversation[0].role == "system":
            return tuple(conversation)
        return (Message(role="system", content=self.system), *conversation)

    def _fill(self, prompt: str) -> str:
        return self.template.replace(PLACE, prompt)
