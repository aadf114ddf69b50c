"""The `optimizer` table of a config: a preset's composition as defaults, any axis of which may be replaced.

optimizer = { use = "grpo" }
optimizer = { use = "grpo", trust_region = { high = 0.28 } }               # the preset's part, one option changed
optimizer = { use = "grpo", trust_region = { use = "truncate", cap = 5 } }  # another part
optimizer = { use = "grpo", baseline = "group_loo", regularisers = [] }
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from assay.component import Options
from assay.errors import ConfigError, did_you_mean
from assay_optim.advantage import VirtualSamples

M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], options: Mapping[str, Any], *, where: str, what: str) -> M:
    """`model` made of `options`; raises `ConfigError` with the first complaint, which tells where and about `what`."""
    try:
        return model(**options)
    except ValidationError as error:
        first = error.errors()[0]
    key = ".".join(str(piece) for piece in first["loc"])
    if first["type"] == "extra_forbidden":
        known = sorted(model.model_fields)
        raise ConfigError(
            f"{where}.{key}: {what} has no such option; known: {', '.join(known) or 'none'}.{did_you_mean(key, known)}"
        )
    place = f"{where}.{key}" if key else where
    raise ConfigError(f"{place}: {first['msg'].removeprefix('Value error, ')}; found {first.get('input')!r}")


class PartSpec(BaseModel):
    """Which part, and its options; they are checked by the part's own model when the optimizer is built."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    use: str

    @property
    def options(self) -> dict[str, Any]:
        """The keys beside `use`."""
        return dict(self.model_extra or {})


def spec(use: str, **options: Any) -> PartSpec:
    """A `PartSpec` with these options."""
    return PartSpec.model_validate({"use": use, **options})


def spelled_out(standing: Any, value: Any) -> Any:
    """A name as a table; a table without `use` as the standing part with these options changed."""
    if isinstance(value, str):
        return {"use": value}
    if isinstance(value, Mapping) and "use" not in value and isinstance(standing, PartSpec):
        return {"use": standing.use, **standing.options, **cast("Mapping[str, Any]", value)}
    return cast("Any", value)


class CompositionOptions(Options):
    """One part per axis; a name alone, or a table with `use` and the part's options.

    A table without `use` keeps the part that stands there and changes only the given options. Lists are replaced whole.
    """

    shaping: tuple[PartSpec, ...] = ()
    """Reward shapers, in order."""
    batch_rules: tuple[PartSpec, ...] = ()
    """Rules on groups and rows, in order; the first that is against a group decides."""
    task_sampler: PartSpec | None = None
    """Which tasks are drawn next; None draws all alike."""
    virtual_samples: VirtualSamples | None = None
    """Rewards added to every group's statistics."""
    estimator: PartSpec | None = None
    """Advantages in one piece, instead of baseline x scale x credit."""
    baseline: PartSpec | None = None
    """What is subtracted from a reward; `none` by default."""
    scale: PartSpec | None = None
    """What it is divided by; `none` by default."""
    credit: PartSpec | None = None
    """How it is spread over tokens; `broadcast` by default."""
    ratio: PartSpec = PartSpec(use="none")
    """Which probability ratio."""
    trust_region: PartSpec = PartSpec(use="none")
    """What the ratio may do."""
    aggregation: PartSpec = PartSpec(use="token_mean")
    """How token losses become one number."""
    regularisers: tuple[PartSpec, ...] = ()
    """Terms added to the loss."""
    sidecars: tuple[PartSpec, ...] = ()
    """Further state, from other plugins."""

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        table = dict(cast("Mapping[str, Any]", data))
        return {key: cls._spelled_out(key, value) for key, value in table.items()}

    @classmethod
    def _spelled_out(cls, axis: str, value: Any) -> Any:
        if axis not in cls.model_fields or axis == "virtual_samples":
            return value
        if isinstance(value, list | tuple):
            return [spelled_out(None, item) for item in cast("list[Any]", value)]
        return spelled_out(cls.model_fields[axis].default, value)
