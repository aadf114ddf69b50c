"""What every contract has in common."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue

__all__ = ["Contract", "JsonValue", "Text"]


def _whole(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


Text = Annotated[str, AfterValidator(_whole)]
"""Text that can be written as UTF-8: lone surrogates, which nothing can store or send, become U+FFFD."""


class Contract(BaseModel):
    """Data that crosses a boundary: frozen, closed to unknown fields, finite, and equal after a trip through JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
