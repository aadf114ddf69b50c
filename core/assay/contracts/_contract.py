"""What every contract has in common."""

from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue
from pydantic_core import PydanticSerializationError, to_json

__all__ = ["Contract", "JsonValue", "Text", "WholeJson"]


def _whole(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _whole_json(value: JsonValue) -> JsonValue:
    try:
        to_json(value)
    except PydanticSerializationError as error:
        return _each_whole(value) if "UnicodeEncodeError" in str(error) else value
    return value


def _each_whole(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, dict):
        return {_whole(key): _each_whole(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_each_whole(item) for item in cast("list[Any]", value)]
    return value


Text = Annotated[str, AfterValidator(_whole)]
"""Text that can be written as UTF-8: lone surrogates, which nothing can store or send, become U+FFFD."""
WholeJson = Annotated[JsonValue, AfterValidator(_whole_json)]
"""JSON whose texts can be written as UTF-8, as `Text` can."""


class Contract(BaseModel):
    """Data that crosses a boundary: frozen, closed to unknown fields, finite, and equal after a trip through JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
