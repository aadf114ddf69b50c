"""What this plugin offers: optimizers, their parts, and objectives. Listing them imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from pydantic import create_model
from pydantic.fields import FieldInfo

from assay.component import BuildContext, Component, Part
from assay.errors import ConfigError, did_you_mean
from assay.hookspecs import hookimpl
from assay.protocols import Objective, PolicyOptimizer
from assay_optim.compose import build
from assay_optim.optimizer import Composition
from assay_optim.options import CompositionOptions, checked
from assay_optim.parts import PARTS
from assay_optim.preference.links import link_parts
from assay_optim.preference.offers import objectives
from assay_optim.presets import PRESETS, Preset
from assay_optim.table import cells

OWN = Preset("composition", "Your own composition: every axis is yours", "-", {})
"""The preset in which nothing stands yet."""


def options_of(preset: Preset) -> type[CompositionOptions]:
    """The options model of a preset: `CompositionOptions` with the preset's parts as defaults."""
    standing = CompositionOptions(**preset.parts)
    fields: dict[str, Any] = {}
    for name, field in CompositionOptions.model_fields.items():
        default = FieldInfo(annotation=field.annotation, default=getattr(standing, name), description=field.description)
        fields[name] = (field.annotation, default)
    title = re.sub(r"(^|_)(\w)", lambda match: match[2].upper(), preset.name) + "Options"
    return create_model(title, __base__=CompositionOptions, __doc__=preset.summary, **fields)


def component_of(preset: Preset) -> Component[Any, PolicyOptimizer]:
    """The component of a preset."""
    model = options_of(preset)
    return Component(
        preset.name,
        model,
        partial(build, preset.name),
        summary=preset.summary,
        extra="train",
        facts=cells(preset, model()),
    )


def optimizer(preset: str, **options: Any) -> Composition:
    """The optimizer of a preset with options replaced, built as a config's `optimizer` table builds it.

    Raises `ConfigError` for an unknown preset, part or option.
    """
    found = next((known for known in (*PRESETS, OWN) if known.name == preset), None)
    if found is None:
        known = [known.name for known in (*PRESETS, OWN)]
        raise ConfigError(
            f"optimizer.use: no optimizer named {preset!r}; known: {', '.join(known)}.{did_you_mean(preset, known)}"
        )
    checked_options = checked(options_of(found), options, where="optimizer", what=f"optimizer {preset!r}")
    return build(preset, checked_options, BuildContext())


@hookimpl
def assay_policy_optimizers() -> Iterable[Component[Any, PolicyOptimizer]]:
    """All presets, and `composition`, in which every axis is to be given."""
    return [component_of(preset) for preset in (*PRESETS, OWN)]


@hookimpl
def assay_optimizer_parts() -> Iterable[Part]:
    """Every built-in part, the links of pair objectives included."""
    return (*PARTS, *link_parts())


@hookimpl
def assay_objectives() -> Iterable[Component[Any, Objective]]:
    """Supervised fine-tuning and every preference objective."""
    return objectives()


def objective(name: str, **options: Any) -> Objective:
    """The objective of that name with options replaced, built as a config's `objective` table builds it.

    Raises `ConfigError` for an unknown objective, link or option.
    """
    found = {component.name: component for component in objectives()}
    if name not in found:
        raise ConfigError(
            f"objective.use: no objective named {name!r}; known: {', '.join(found)}.{did_you_mean(name, found)}"
        )
    checked_options = checked(found[name].config, options, where="objective", what=f"objective {name!r}")
    return found[name].build(checked_options, BuildContext())
