"""What every contract has in common."""

from pydantic import BaseModel, ConfigDict, JsonValue

__all__ = ["Contract", "JsonValue"]


class Contract(BaseModel):
    """Data that crosses a boundary: frozen, closed to unknown fields, finite, and equal after a trip through JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
