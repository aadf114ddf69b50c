"""A component: a name, a config model, and how to build the part; and what a part may ask for while it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from assay.contracts.limits import Isolation, ResourceLimits
from assay.contracts.rollout import Rollout
from assay.contracts.task import Task
from assay.protocols import RolloutEngine, Sandbox

if TYPE_CHECKING:
    from assay.contracts.batch import RunInfo
    from assay.training.model import PolicyModel

C = TypeVar("C")
T = TypeVar("T")

Axis = Literal[
    "shaper",
    "batch_rule",
    "task_sampler",
    "baseline",
    "scale",
    "credit",
    "estimator",
    "ratio",
    "trust_region",
    "aggregation",
    "regulariser",
    "sidecar",
    "link",
]


class Options(BaseModel):
    """Base of every component's config model: frozen, unknown keys are errors, fields documented by a string."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class WorkerAnswer(Protocol):
    """What a killable worker made of one call."""

    @property
    def status(self) -> Literal["ok", "raised", "timed_out", "out_of_memory", "killed", "too_large"]:
        """How the call ended."""
        ...

    @property
    def value(self) -> JsonValue:
        """The returned value where the status is `ok`."""
        ...

    @property
    def detail(self) -> str:
        """One line of cause where it is not: the exception, the limit, the signal."""
        ...

    @property
    def output(self) -> str:
        """What the call printed."""
        ...


class Workers(Protocol):
    """A pool of killable worker processes."""

    async def call(self, target: str, payload: JsonValue, *, limits: ResourceLimits) -> WorkerAnswer:
        """Run `target` (`"module:function"`, JSON in, JSON out) on one item; its whole process tree dies at a limit."""
        ...


@dataclass
class BuildContext:
    """What a component may ask for while it is built; killable workers, sandboxes and engines come only from here."""

    seed: int = 0
    device: str = "cpu"
    base_dir: Path = field(default_factory=Path.cwd)
    """What relative paths in options are relative to: the config file's folder."""
    cache_dir: Path = field(default_factory=lambda: Path.home() / ".cache" / "assay")
    run: RunInfo | None = None
    """The run that goes on, for trackers; None while a config is only checked."""
    workers: Workers | None = None
    policy: PolicyModel | None = None
    """The policy that is trained, for engines that share it in memory."""
    open_sandbox: Callable[[str | None, dict[str, Any]], Sandbox] | None = None
    """Name (None: the best that works here) and options to a sandbox."""
    open_engine: Callable[[str, dict[str, Any]], RolloutEngine] | None = None
    """Name and options to an engine, for judges and labels."""
    read_run: Callable[[str], Iterable[tuple[Task, Rollout]]] | None = None
    """Name or folder of a run to its tasks and rollouts, in order of arrival; raises `ConfigError` for no run."""
    parts: Mapping[tuple[str, str], Part] = field(default_factory=dict[tuple[str, str], "Part"])
    """(axis, name) to every registered part of the optimizer composition, those of other plugins included."""


@dataclass(frozen=True)
class Component(Generic[C, T]):
    """A named part that can be built from options."""

    name: str
    config: type[C]
    """A pydantic model of the options; every field is documented and has a bound where one makes sense."""
    build: Callable[[C, BuildContext], T]
    summary: str = ""
    """One line for `assay plugins`."""
    extra: str | None = None
    """The extra of the distribution that must be installed, named when an import fails."""
    isolation: Isolation = "process"
    """Where a reward source runs; a third party's default is a killable process."""
    spreads: bool = False
    """Whether an inline reward source may also be judged in worker processes; it is where these are on a cluster."""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    """Cells for generated tables (for an optimizer: advantage, ratio, trust region, ...)."""


@dataclass(frozen=True)
class Part:
    """One value of one axis of the optimizer composition, registered by `assay_optimizer_parts`."""

    axis: Axis
    name: str
    config: type[Any]
    """A pydantic model of the part's options."""
    build: Callable[[Any], Any]
    """Options to the part: a pure function or small dataclass with the signature that the axis asks for."""
    summary: str = ""
    source: str = ""
    """Paper and equation."""
