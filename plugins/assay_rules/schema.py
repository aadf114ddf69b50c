"""`json-schema`: the whole answer is JSON that fits a schema; the library jsonschema decides, offline."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pydantic import JsonValue

from assay.component import Options
from assay.contracts import Evidence, Limits, Rollout, Task, Verdict
from assay_rules.json_text import NotJsonError, read_json, unfenced
from assay_rules.text import answer_zone, shown

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

SCHEMA_LIMITS = Limits(timeout_s=2.0, memory_mib=512, limit_fault="candidate")
"""A schema may hold expressions whose cost the candidate's text decides; hence a worker and a short limit."""


class SchemaOptions(Options):
    """Where the schema comes from."""

    json_schema: dict[str, JsonValue] | bool | None = None
    """A JSON Schema; None takes the task's fact `schema`, or else its reference."""


class BadSchemaError(ValueError):
    """There is no schema, or it is not a valid one."""


@dataclass(frozen=True)
class Schema:
    """1 where the answer is JSON and valid, else 0; booleans are never numbers, and no reference is fetched."""

    options: SchemaOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        try:
            validator = _validator(self._schema(task))
        except BadSchemaError as error:
            return Verdict.abstain("schema_invalid", fault="ours", evidence=str(error))
        zone = answer_zone(rollout.text)
        if zone is None or not zone.strip():
            return Verdict.abstain("no_answer", evidence="the response has no text after its reasoning")
        try:
            value = read_json(unfenced(zone))
        except NotJsonError as error:
            return Verdict.score(0.0, evidence=f"not JSON: {error}")
        return _validated(validator, value)

    def check_task(self, task: Task) -> str | None:
        """One sentence when the schema is missing or invalid."""
        try:
            _validator(self._schema(task))
        except BadSchemaError as error:
            return str(error)
        return None

    def _schema(self, task: Task) -> JsonValue:
        if self.options.json_schema is not None:
            return cast("JsonValue", self.options.json_schema)
        return task.facts.get("schema", task.reference)


def _validator(schema: JsonValue) -> "Validator":
    if not isinstance(schema, dict | bool):
        raise BadSchemaError(f"a schema is an object or a boolean; found {type(schema).__name__}")
    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        raise BadSchemaError(f"the schema's $schema is no address; found {schema['$schema']!r}")
    return _compiled(json.dumps(schema))


@lru_cache(maxsize=256)
def _compiled(text: str) -> "Validator":
    from jsonschema import validators
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY

    schema = json.loads(text)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise BadSchemaError(f"the schema is invalid at {error.json_path}: {error.message[:200]}") from error
    # Only the specifications themselves are known: a schema never makes this process read another address.
    extend: Callable[..., Callable[..., Validator]] = cast("Any", validators).extend
    return extend(kind, {"multipleOf": _multiple_of})(schema, registry=REGISTRY)


def _multiple_of(validator: Any, step: float, value: Any, _schema: Any) -> "Iterable[ValidationError]":
    """The keyword as the numbers are written: 0.3 is a multiple of 0.1, though their doubles leave a remainder."""
    from jsonschema.exceptions import ValidationError

    if validator.is_type(value, "number") and (_written(value) / _written(step)).denominator != 1:
        yield ValidationError(f"{value!r} is not a multiple of {step!r}")


def _written(number: float) -> Fraction:
    """The exact value of the shortest decimal that stands for `number`."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _validated(validator: "Validator", value: Any) -> Verdict:
    from jsonschema import exceptions
    from referencing.exceptions import Unresolvable

    try:
        pick: Callable[[Iterable[ValidationError]], ValidationError | None] = cast("Any", exceptions).best_match
        error = pick(validator.iter_errors(value))
    except Unresolvable as unresolvable:
        return Verdict.abstain("schema_invalid", fault="ours", evidence=f"the schema points nowhere: {unresolvable}")
    except RecursionError:
        return Verdict.abstain("too_deep", evidence="the answer is nested too deep to validate")
    if error is None:
        return Verdict.score(1.0, evidence=Evidence(kind="schema", summary="the answer is valid"))
    summary = f"{error.json_path}: {shown(error.message, 200)}"
    return Verdict.score(0.0, evidence=Evidence(kind="schema", summary=summary))
