"""A task's messages as prompt ids."""

from __future__ import annotations

from typing import Any, Literal

from assay.contracts import Task
from assay.errors import EngineError

Template = Literal["auto", "chat", "plain"]


def render(task: Task, tokenizer: Any, template: Template) -> tuple[int, ...]:
    """The prompt ids of `task`: by the tokenizer's chat template, or the messages' texts joined by a blank line.

    `auto` takes the chat template where the tokenizer has one. A last message by the assistant is continued instead of
    answered. Special tokens that the text itself spells out are data here and keep their ids; task sources are trusted.

    Raises:
        EngineError: `chat` without a template, a template that refuses the messages, or an empty prompt.
    """
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if template == "chat" and not has_template:
        raise EngineError("engine.template: the tokenizer has no chat template; use template = 'plain'")
    if template == "plain" or not has_template:
        text = "\n\n".join(message.content for message in task.messages)
        ids = tokenizer(text, add_special_tokens=True)["input_ids"]
    else:
        goes_on = task.messages[-1].role == "assistant"
        messages = [{"role": message.role, "content": message.content} for message in task.messages]
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
            )
        except Exception as error:  # noqa: BLE001, RUF100 - templates are programs of the model's author (jinja)
            raise EngineError(f"task {task.id!r}: the chat template refuses its messages: {error}") from error
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise EngineError(f"task {task.id!r}: the prompt is empty; give the task a text")
    return tuple(int(token) for token in ids)
