"""`tool-call`: the response calls exactly the reference's functions with equal arguments."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple, cast

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay_rules.json_text import NotJsonError, read_json, unfenced
from assay_rules.text import answer_zone, shown, storable

Order = Literal["strict", "any"]
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ToolOptions(Options):
    """How the calls are compared."""

    order: Order = "strict"
    """`strict`: the same calls in the same order; `any`: the same multiset. A task's fact `order` goes before."""


class Call(NamedTuple):
    """One call of one function."""

    name: str
    arguments: dict[str, Any]


class BadCallError(ValueError):
    """Something is no readable call; its text says why in one line."""


@dataclass(frozen=True)
class ToolCall:
    """1 where the calls are equal, else 0: names and values, numbers by value, nothing coerced, none extra."""

    options: ToolOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        problem = self.check_task(task)
        if problem is not None:
            return Verdict.abstain("gold_unparseable", fault="ours", evidence=problem)
        golds = _golds(task)
        zone = answer_zone(rollout.text)
        if zone is None:
            return Verdict.abstain("no_answer", evidence="the reasoning never ends")
        try:
            calls = read_calls(zone)
        except BadCallError as error:
            return Verdict.score(0.0, evidence=f"a call cannot be read: {error}")
        problem = compare_calls(golds, calls, order=self._order(task))
        made = [
            f"{storable(call.name, 80)}({', '.join(storable(key, 40) for key in call.arguments)})" for call in calls
        ]
        summary = problem or f"{len(calls)} calls as in the reference"
        return Verdict.score(
            float(problem is None), evidence=Evidence(kind="calls", summary=summary, data=list(made[:50]))
        )

    def check_task(self, task: Task) -> str | None:
        """One sentence when the reference is no list of calls."""
        try:
            _golds(task)
        except BadCallError as error:
            return f"the reference is no list of calls: {error}"
        if self._order(task) not in ("strict", "any"):
            return f"the fact 'order' is {task.facts['order']!r}; expected 'strict' or 'any'"
        return None

    def _order(self, task: Task) -> Order:
        return cast("Order", task.facts.get("order", self.options.order))


def read_calls(text: str) -> list[Call]:
    """The calls in `text`, in order; an empty list where the text is prose.

    They are read from each `<tool_call>` block, or else from the whole text as JSON: a call, a list of calls, or an
    object with `tool_calls`.

    Raises:
        BadCallError: a block is not closed or not a call, or the JSON is none.
    """
    if _OPEN in text:
        calls: list[Call] = []
        for block in text.split(_OPEN)[1:]:
            body, closed, _ = block.partition(_CLOSE)
            if not closed:
                raise BadCallError(f"{_OPEN} never closes")
            calls.append(_call(_json(body)))
        return calls
    text = unfenced(text)
    if not text.startswith(("{", "[")):
        return []
    return as_calls(_json(text))


def as_calls(value: Any) -> list[Call]:
    """The calls in a JSON value: a call, a list of calls, or an object with `tool_calls`."""
    found: object = value
    if isinstance(found, dict) and "tool_calls" in found:
        found = cast("dict[str, object]", found)["tool_calls"]
    if isinstance(found, list):
        return [_call(item) for item in cast("list[object]", found)]
    return [_call(cast("object", found))]


def compare_calls(golds: Sequence[Call], calls: Sequence[Call], *, order: Order = "strict") -> str | None:
    """What differs in one sentence, or None where the calls are equal in the sense of `order`."""
    wanted, made = [_key(call) for call in golds], [_key(call) for call in calls]
    if order == "any":
        missing, extra = Counter(wanted) - Counter(made), Counter(made) - Counter(wanted)
        if missing:
            return f"{missing.total()} of {len(golds)} calls missing, {extra.total()} others made"
        return f"{extra.total()} calls too many" if extra else None
    if len(wanted) != len(made):
        return f"{len(made)} calls instead of {len(wanted)}"
    wrong = next((index for index, (a, b) in enumerate(zip(wanted, made, strict=True)) if a != b), None)
    if wrong is None:
        return None
    gold, call = golds[wrong], calls[wrong]
    what = "another function" if gold.name != call.name else "other arguments"
    return f"call {wrong + 1} is {what}: {shown(call.name, 40)} instead of {shown(gold.name, 40)}"


def _golds(task: Task) -> list[Call]:
    reference: Any = task.reference if task.reference is not None else task.facts.get("gold_calls")
    if reference is None:
        raise BadCallError("it is empty")
    return as_calls(_json(reference) if isinstance(reference, str) else reference)


def _call(value: object) -> Call:
    if not isinstance(value, dict):
        raise BadCallError(f"a call is an object, found {type(value).__name__}")
    call = cast("dict[str, Any]", value)
    if isinstance(call.get("function"), dict):
        call = cast("dict[str, Any]", call["function"])
    name = call.get("name")
    if not isinstance(name, str):
        raise BadCallError("a call has no name")
    if "arguments" in call and "parameters" in call:
        raise BadCallError("a call has both arguments and parameters")
    arguments: Any = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        raise BadCallError("arguments are an object")
    return Call(name, cast("dict[str, Any]", arguments))


def _json(text: str) -> Any:
    try:
        return read_json(text, exact=True)
    except NotJsonError as error:
        raise BadCallError(str(error)) from error


def _key(call: Call) -> Hashable:
    try:
        return (call.name, value_key(call.arguments))
    except RecursionError:
        raise BadCallError("nested too deep") from None


def value_key(value: Any) -> Hashable:
    """A key that is equal for equal JSON values: numbers by value, and a boolean is never a number."""
    match value:
        case bool() | None | str():
            return (type(value).__name__, value)
        case float():
            return ("number", Decimal(repr(value)))
        case int() | Decimal():
            return ("number", Decimal(value))
        case list():
            return ("list", tuple(value_key(item) for item in cast("list[Any]", value)))
        case dict():
            fields = cast("dict[str, Any]", value)
            return ("object", frozenset((key, value_key(item)) for key, item in fields.items()))
        case _:
            raise BadCallError(f"{type(value).__name__} is no JSON value")
