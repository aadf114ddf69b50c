"""Tasks and rollouts made of what other trainers hand over: a prompt, a completion, and the columns of a data set."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import JsonValue

from assay.contracts import Message, Rollout, Task, Turn
from assay.errors import ConfigError

MIN_OVERLAP = 16
"""Characters that the end of a cut prompt must share with the start of a query to be recognised."""
END_TOKENS = (
    "</s>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<eos>",
)
"""Special tokens that end a response, as tokenizers write them where they are told to keep special tokens."""


def task_of(
    prompt: str | Sequence[Mapping[str, Any]],
    *,
    reference: object,
    facts: Mapping[str, object],
    tags: Sequence[str] = (),
    where: str,
) -> Task:
    """A task whose id follows from its content, so that equal rows are the same task.

    Values of `facts` that are no JSON (images, for example) are left out. Raises `ConfigError` where the prompt is
    neither text nor messages with text, or the reference is no JSON.
    """
    messages = messages_of(prompt, where=where)
    gold, good = as_json(reference)
    if not good:
        raise ConfigError(
            f"{where}: the reference must be text, a number or JSON; found {type(reference).__name__}; "
            "name another column with reference="
        )
    known: dict[str, JsonValue] = {}
    for name, value in facts.items():
        kept, good = as_json(value)
        if good:
            known[name] = kept
    name = task_id_of(messages, gold, known, tags)
    return Task(id=name, messages=messages, reference=gold, facts=known, tags=tuple(tags))


def task_id_of(
    messages: Sequence[Message], reference: JsonValue, facts: Mapping[str, JsonValue], tags: Sequence[str]
) -> str:
    """An id that equal tasks share and others do not: 24 hexadecimal digits of a digest of the content."""
    content = [[[message.role, message.content] for message in messages], reference, facts, list(tags)]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=12).hexdigest()


def rollout_of(
    completion: str | Sequence[Mapping[str, Any]],
    *,
    rollout_id: str,
    task: Task,
    token_ids: Sequence[int] | None = None,
    where: str,
) -> Rollout:
    """A rollout of `task`; turns of a conversation that the policy did not write are not trainable.

    `token_ids` are kept where the completion is a single turn. Raises `ConfigError` for what is no completion.
    """
    if isinstance(completion, str):
        turns = [Turn(text=completion)]
    else:
        messages = messages_of(completion, where=where)
        turns = [Turn(role=m.role, text=m.content, trainable=m.role == "assistant") for m in messages]
    if token_ids is not None and len(turns) == 1:
        turns = [turns[0].model_copy(update={"token_ids": tuple(token_ids)})]
    return Rollout(id=rollout_id, task_id=task.id, group_id=task.id, turns=tuple(turns))


def messages_of(value: object, *, where: str) -> tuple[Message, ...]:
    """Messages of a text (one user message) or of a list of `{role, content}`; content parts of text are joined."""
    if isinstance(value, str):
        return (Message(role="user", content=value),)
    if not isinstance(value, Sequence) or not value:
        raise ConfigError(
            f"{where}: expected text or messages with role and content; found {_named(cast('object', value))}"
        )
    return tuple(_message(item, where) for item in cast("Sequence[object]", value))


def _message(item: object, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise ConfigError(f"{where}: a message is a table with role and content; found {_named(item)}")
    message = cast("Mapping[str, object]", item)
    role = {"developer": "system"}.get(str(message.get("role")), str(message.get("role")))
    if role not in ("system", "user", "assistant", "tool"):
        raise ConfigError(f"{where}: a message's role is system, user, assistant or tool; found {role!r}")
    return Message(role=role, content=_content(message.get("content"), where))


def _content(content: object, where: str) -> str:
    if content is None:
        return ""  # a message that only calls tools
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "".join(_part(part, where) for part in cast("Sequence[object]", content))
    raise ConfigError(f"{where}: a message's content must be text; found {_named(content)}")


def _part(part: object, where: str) -> str:
    table: Mapping[str, object] = cast("Mapping[str, object]", part) if isinstance(part, Mapping) else {}
    text = table.get("text")
    if table.get("type") != "text" or not isinstance(text, str):
        raise ConfigError(f"{where}: only text is judged; found a content part of type {table.get('type')!r}")
    return text


def response_in(query: str, prompt: str) -> str | None:
    """The response inside `query`, which is a decoded prompt followed by it; None where the prompt is not found.

    The prompt may stand behind a start token, or have lost its beginning to a length limit. Tokens that end a response
    are cut off.
    """
    start = query.find(prompt)
    if start >= 0:
        return without_end_tokens(query[start + len(prompt) :])
    for size in range(min(len(query), len(prompt)), MIN_OVERLAP - 1, -1):
        if query.startswith(prompt[-size:]):
            return without_end_tokens(query[size:])
    return None


def without_end_tokens(text: str) -> str:
    """The text without the special tokens at its very end."""
    while True:
        shorter = text.rstrip("\n")
        for token in END_TOKENS:
            shorter = shorter.removesuffix(token)
        if shorter == text.rstrip("\n"):
            return text
        text = shorter


def as_json(value: object) -> tuple[JsonValue, bool]:
    """`value` as JSON and whether it is any; arrays and scalars of numpy become lists and numbers."""
    if value is None or isinstance(value, str | bool | int):
        return value, True
    if isinstance(value, float):
        return (value, True) if math.isfinite(value) else (None, False)
    if isinstance(value, Mapping):
        table = {str(key): as_json(item) for key, item in cast("Mapping[object, object]", value).items()}
        return {key: item for key, (item, _) in table.items()}, all(good for _, good in table.values())
    if isinstance(value, list | tuple):
        items = [as_json(item) for item in cast("Sequence[object]", value)]
        return [item for item, _ in items], all(good for _, good in items)
    to_list = getattr(value, "tolist", None)
    if callable(to_list):
        return as_json(to_list())
    return None, False


def _named(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r}"[:80]
