"""A trainable reward model: a grade from 0 to 1 for a whole response, learned by squared error; and its source."""

from typing import Any

from assay import BuildContext, Component, Options, hookimpl


class SourceOptions(Options):
    """Where the trained model is."""

    path: str
    """Its folder, as `kind = "prm"` wrote it."""


def build_objective(options: Options, context: BuildContext) -> Any:
    """A fresh objective; torch is imported here, not when plugins are listed."""
    from assay_graded_reward.model import Graded

    return Graded()


def build_source(options: SourceOptions, context: BuildContext) -> Any:
    """The source of a folder."""
    from assay_graded_reward.model import load

    return load(context.base_dir / options.path)


@hookimpl
def assay_objectives() -> list[Component[Any, Any]]:
    """What is trained."""
    return [Component("graded", Options, build_objective, "a grade by squared error", facts={"kind": "prm"})]


@hookimpl
def assay_reward_sources() -> list[Component[Any, Any]]:
    """How it is used: in the run's process, where the model is loaded once."""
    return [Component("graded-reward", SourceOptions, build_source, "a trained grade", isolation="inline")]
