"""What the policy is asked, and what only the verifiers may know."""

from typing import Literal

from pydantic import Field

from assay.contracts._contract import Contract, JsonValue, Text

Role = Literal["system", "user", "assistant", "tool"]


class Message(Contract):
    """One message of a conversation; text only."""

    role: Role
    """Who speaks."""
    content: Text
    """What is said."""


class Task(Contract):
    """One question: the messages that the policy sees, and the reference and facts that only verifiers see."""

    id: str = Field(min_length=1)
    """Unique within its task source, and stable from run to run."""
    messages: tuple[Message, ...] = Field(min_length=1)
    """What the policy is given."""
    reference: JsonValue = None
    """The gold answer in the data set's own form, or None where there is none."""
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    """Anything else that a verifier needs; never shown to the policy."""
    tags: tuple[str, ...] = ()
    """Names that `when = { tag = "..." }` routes by."""

    @property
    def prompt(self) -> str:
        """The text of the last user message, or of the last message when no user speaks."""
        for message in reversed(self.messages):
            if message.role == "user":
                return message.content
        return self.messages[-1].content
