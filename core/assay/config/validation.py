"""Turns data into config models, and a model's complaints into one sentence: where, what was found, what to do."""

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from assay.errors import ConfigError, did_you_mean

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], data: Mapping[str, Any], *, where: str) -> M:
    """`model` made of `data`; raises `ConfigError` with a sentence per wrong key (at most three)."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise ConfigError(explain(error, model, where=where)) from error


def explain(error: ValidationError, model: type[BaseModel], *, where: str) -> str:
    """The sentences for a `ValidationError` of `model`."""
    details = [detail for detail in error.errors(include_url=False) if not _follows_another(detail)]
    sentences = [_sentence(detail, model, where) for detail in details[:3]]
    if len(details) > len(sentences):
        sentences.append(f"and {len(details) - len(sentences)} more")
    return "\n".join(sentences)


def _follows_another(detail: Any) -> bool:
    """Whether a list is called too short only because each of its elements is wrong, which is said already."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _sentence(detail: Any, model: type[BaseModel], where: str) -> str:
    location = tuple(str(part) for part in detail["loc"] if not _is_tag(part))
    place = _place(where, location)
    kind, found = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        key = location[-1]
        known = _keys(model, location[:-1])
        listing = f"; known: {', '.join(known)}" if known else ""
        return f"{_place(where, location[:-1])}: unknown key {key!r}{listing}.{did_you_mean(key, known)}"
    if kind == "missing":
        return f"{_place(where, location[:-1])}: key {location[-1]!r} is missing"
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    shown = repr(found)
    if kind == "value_error":
        return f"{place}: {message}"
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    if kind in _SHAPES:
        example = f"; write {_SHAPES[kind].format(found)}" if _names_a_part(model, location, found) else ""
        return f"{place}: expected {'a list' if kind in _LISTS else 'a table'}; found {shown}{example}"
    return f"{place}: {message[:1].lower()}{message[1:]}; found {shown}"


_LISTS = frozenset({"list_type", "tuple_type"})
_SHAPES = dict.fromkeys(_LISTS, '[{{ use = "{}" }}]') | dict.fromkeys(("model_type", "dict_type"), '{{ use = "{}" }}')
"""Complaints about text where a list or a table is wanted, and how that would name the part that the text names."""


def _names_a_part(model: type[BaseModel], location: tuple[str, ...], found: object) -> bool:
    """Whether a short text stands where parts are chosen by `use`."""
    return isinstance(found, str) and found.isprintable() and len(found) < 60 and "use" in _keys(model, location)


def _is_tag(part: object) -> bool:
    """Whether a location part is pydantic's name of a union branch instead of a key."""
    return isinstance(part, str) and (part.startswith(("function-", "tagged-union")) or "[" in part)


def _place(where: str, location: tuple[str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if part.isdigit() else f".{part}" if path else part
    if not path:
        return where
    return f"{where}: {path}" if where.endswith((".toml", ".json")) or not where else f"{where}.{path}"


def _keys(model: Any, location: tuple[str, ...]) -> list[str]:
    """Known keys of the model found by walking `location` from `model`."""
    current: Any = model
    for part in location:
        current = _models_in(current)
        if current is None:
            return []
        if not part.isdigit():
            field = current.model_fields.get(part)
            if field is None:
                return []
            current = field.annotation
    current = _models_in(current)
    return sorted(current.model_fields) if current is not None else []


def _models_in(annotation: Any) -> Any:
    """The first model class inside an annotation, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None or get_args(annotation):
        for argument in get_args(annotation):
            found = _models_in(argument)
            if found is not None:
                return found
    return None
