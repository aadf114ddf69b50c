"""`instructions`: the response follows every checkable instruction of its task."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, cast, get_args

from pydantic import Field, JsonValue

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay.errors import did_you_mean
from assay_rules.instruction_checks import ALIASES, CHECKS, Check, Relation
from assay_rules.text import answer_zone

_MINIMA = {"nth_paragraph": 1, "num_paragraphs": 1}


class Instruction(Options):
    """One instruction and its arguments."""

    id: str
    """One of IFEval's names, its second part, or a short name: `keywords:frequency`, `frequency`, `all_caps`."""
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Its arguments, under IFEval's names."""


class InstructionOptions(Options):
    """Which instructions, and how they add up."""

    instructions: tuple[Instruction, ...] = ()
    """Instructions that hold for every task, beside the task's own (its facts `instruction_id_list` and `kwargs` as in
    IFEval, or `instructions`, a list of tables with `id` and `kwargs`)."""
    score: Literal["all", "share"] = "all"
    """`all`: 1 where every instruction is followed; `share`: the share that is."""


class BadInstructionError(ValueError):
    """An instruction is unknown or its arguments do not fit; its text is one sentence."""


class Bound(NamedTuple):
    """An instruction that is ready to be checked."""

    name: str
    check: Callable[..., Check]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Instructions:
    """In [0, 1]: whether, or how far, the instructions are followed; one piece of evidence for each."""

    options: InstructionOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        try:
            bound = self._bound(task)
        except BadInstructionError as error:
            return Verdict.abstain("instruction_invalid", fault="ours", evidence=str(error))
        zone = answer_zone(rollout.text)
        if zone is None or not zone.strip():
            return Verdict.abstain("no_answer", evidence="the response has no text after its reasoning")
        checks = [(instruction.name, instruction.check(zone, **instruction.kwargs)) for instruction in bound]
        evidence = tuple(
            Evidence(
                kind="instruction",
                summary=f"{name}: {'followed' if check.followed else 'not followed'}: {check.found}",
                data={"id": name, "followed": check.followed},
            )
            for name, check in checks
        )
        share = sum(check.followed for _, check in checks) / len(checks)
        return Verdict.score(share if self.options.score == "share" else float(share == 1.0), evidence=evidence)

    def check_task(self, task: Task) -> str | None:
        """One sentence when the task has no instruction, an unknown one, or arguments that do not fit."""
        try:
            self._bound(task)
        except BadInstructionError as error:
            return str(error)
        return None

    def _bound(self, task: Task) -> list[Bound]:
        own = _task_instructions(task)
        found = [bind(item.id, item.kwargs) for item in self.options.instructions] + [bind(*item) for item in own]
        if not found:
            raise BadInstructionError("the task has no instructions; expected the fact 'instruction_id_list'")
        return found


def bind(name: str, kwargs: Mapping[str, JsonValue]) -> Bound:
    """The check of an instruction with its arguments; arguments that are None count as absent, as in IFEval's files.

    Raises:
        BadInstructionError: the name is unknown or an argument is missing, of another type, or not known.
    """
    full = resolve(name)
    given: dict[str, JsonValue] = {key: value for key, value in kwargs.items() if value is not None}
    parameters = _parameters(full)
    for key, parameter in parameters.items():
        if key not in given and parameter.default is inspect.Parameter.empty:
            raise BadInstructionError(f"{full}: the argument {key!r} is missing; found {', '.join(given) or 'none'}")
    for key, value in given.items():
        if key not in parameters:
            raise BadInstructionError(f"{full}: unknown argument {key!r}.{did_you_mean(key, parameters)}")
        given[key] = _argument(f"{full}: {key}", key, parameters[key].annotation, value)
    return Bound(full, CHECKS[full], given)


@cache
def resolve(name: str) -> str:
    """IFEval's full name for any accepted one; raises `BadInstructionError` for others."""
    if name in CHECKS:
        return name
    short = ALIASES.get(name, name)
    for full in CHECKS:
        if full.partition(":")[2] == short:
            return full
    known = [*(full.partition(":")[2] for full in CHECKS), *ALIASES, *CHECKS]
    raise BadInstructionError(f"no instruction named {name!r}.{did_you_mean(name, known)}")


@cache
def _parameters(full: str) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(CHECKS[full]).parameters.items())[1:])


def _argument(where: str, key: str, annotation: object, value: JsonValue) -> JsonValue:
    if annotation is int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < _MINIMA.get(key, 0):
            raise BadInstructionError(f"{where} is {value!r}; expected a whole number")
    elif annotation is str:
        if not isinstance(value, str) or not value.strip():
            raise BadInstructionError(f"{where} is {value!r}; expected a text")
    elif annotation is Relation:
        if value not in get_args(Relation):
            raise BadInstructionError(f"{where} is {value!r}; expected one of {', '.join(get_args(Relation))}")
    elif not (isinstance(value, list) and value and all(isinstance(item, str) and item.strip() for item in value)):
        raise BadInstructionError(f"{where} is {value!r}; expected a list of texts")
    return value


def _task_instructions(task: Task) -> list[tuple[str, Mapping[str, JsonValue]]]:
    names, kwargs = task.facts.get("instruction_id_list"), task.facts.get("kwargs")
    if names is not None:
        if not isinstance(names, list) or not isinstance(kwargs, list) or len(names) != len(kwargs):
            raise BadInstructionError("the facts 'instruction_id_list' and 'kwargs' are no two lists of equal length")
        pairs: list[tuple[JsonValue, JsonValue]] = list(zip(names, kwargs, strict=True))
    else:
        listed = task.facts.get("instructions", [])
        if not isinstance(listed, list):
            raise BadInstructionError("the fact 'instructions' is no list")
        tables = [item if isinstance(item, dict) else dict[str, JsonValue]() for item in listed]
        pairs = [(table.get("id"), table.get("kwargs")) for table in tables]
    for name, arguments in pairs:
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            raise BadInstructionError(f"an instruction is a name and a table of arguments; found {name!r}")
    return cast("list[tuple[str, Mapping[str, JsonValue]]]", [(name, arguments or {}) for name, arguments in pairs])
