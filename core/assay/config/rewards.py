"""The `rewards` list and the `judging` table of a config.

An entry is one source, or a combination of entries:

    { use = "math", weight = 1.0 }                                   one source; further keys are its own options
    { gate = { use = "format" }, then = { use = "math" } }           `then` is judged only where the gate is open
    { cascade = [{ use = "math" }, { use = "judge" }] }              the next only where the previous one abstained
    { min = [...] }    { product = [...] }                           all are judged

The list itself is a weighted sum. `weight`, `channel`, `when` and `on_candidate_fault` belong to entries of the list;
inside a combination only the sources' own options are given.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator

OnCandidateFault = Annotated[float, Field(allow_inf_nan=False)] | Literal["mask"] | None
Combination = Literal["source", "gate", "cascade", "min", "product"]
COMBINATIONS: tuple[Combination, ...] = ("gate", "cascade", "min", "product")


class When(BaseModel):
    """Which tasks an entry is for."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tag: str | tuple[str, ...]
    """The entry applies to tasks with this tag, or with any of these."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags as a tuple."""
        return (self.tag,) if isinstance(self.tag, str) else self.tag


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    weight: float = 1.0
    """Factor of the entry's value in its channel's sum; negative for a cost inside the reward."""
    channel: str = Field(default="reward", min_length=1)
    """Which sum the entry belongs to; only `reward` is what the optimizer maximises."""
    when: When | None = None
    """Tasks that the entry applies to; without it all."""
    on_candidate_fault: OnCandidateFault = None
    """Value where the candidate's own doing leaves no score (no answer, an unreadable one), or `mask`; default the
    entry's lowest score, or its highest where more is worse: with a negative weight, or in the channel `cost`. What we
    caused is always masked."""
    label: str | None = None
    """Name in tables and metrics; default made of the sources' names."""

    def applies(self, tags: tuple[str, ...]) -> bool:
        """Whether the entry judges a task with these tags."""
        return self.when is None or any(tag in tags for tag in self.when.tags)


class SourceEntry(_Entry):
    """One reward source by name; the remaining keys are its options and are checked by the component's own model."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, use_attribute_docstrings=True)

    use: str = Field(min_length=1)
    """Name of the reward source."""

    @property
    def options(self) -> dict[str, Any]:
        """The source's own options."""
        return dict(self.model_extra or {})

    @property
    def members(self) -> "tuple[RewardEntry, ...]":
        """No entries inside."""
        return ()

    @property
    def name(self) -> str:
        """The label, or the source's name; for a local file the function's name."""
        path = self.options.get("path")
        if self.label is None and self.use == "python" and isinstance(path, str):
            return path.rpartition(":")[2] or self.use
        return self.label or self.use


def _plain(entry: "AnyEntry") -> "AnyEntry":
    """The entry, which lies inside a combination and so has nothing that only the list's own entries may have."""
    for key in ("weight", "channel", "when", "on_candidate_fault"):
        if getattr(entry, key) != _Entry.model_fields[key].default:
            raise ValueError(f"{key!r} inside a combination has no effect; give it to the whole entry of the list")
    return entry


def _plain_members(members: "tuple[AnyEntry, ...]") -> "tuple[AnyEntry, ...]":
    if not members:
        raise ValueError("an empty combination; give at least one entry")
    return tuple(_plain(member) for member in members)


class GateEntry(_Entry):
    """`then` counts only where the gate is open; where it is closed `then` is not judged at all."""

    gate: Annotated["RewardEntry", AfterValidator(_plain)]
    """What opens the gate."""
    then: Annotated["RewardEntry", AfterValidator(_plain)]
    """What is judged behind it."""
    open_at: float = 0.5
    """The gate is open where its value is at least this."""
    closed: float | None = None
    """Value behind a closed gate; default the lowest score of `then`."""

    @property
    def members(self) -> "tuple[RewardEntry, ...]":
        """Gate and then."""
        return (self.gate, self.then)

    @property
    def name(self) -> str:
        """The label, or `gate(a: b)`."""
        return self.label or f"gate({self.gate.name}: {self.then.name})"


class CascadeEntry(_Entry):
    """The first that does not abstain decides; a later one is judged only where all before it abstained."""

    cascade: Annotated["tuple[RewardEntry, ...]", AfterValidator(_plain_members)]
    """The entries in order."""

    @property
    def members(self) -> "tuple[RewardEntry, ...]":
        """The entries in order."""
        return self.cascade

    @property
    def name(self) -> str:
        """The label, or `cascade(a, b)`."""
        return self.label or _listed("cascade", self.cascade)


class MinEntry(_Entry):
    """The smallest of the values."""

    min: Annotated["tuple[RewardEntry, ...]", AfterValidator(_plain_members)]
    """The entries; all are judged."""

    @property
    def members(self) -> "tuple[RewardEntry, ...]":
        """The entries in order."""
        return self.min

    @property
    def name(self) -> str:
        """The label, or `min(a, b)`."""
        return self.label or _listed("min", self.min)


class ProductEntry(_Entry):
    """The product of the values."""

    product: Annotated["tuple[RewardEntry, ...]", AfterValidator(_plain_members)]
    """The entries; all are judged."""

    @property
    def members(self) -> "tuple[RewardEntry, ...]":
        """The entries in order."""
        return self.product

    @property
    def name(self) -> str:
        """The label, or `product(a, b)`."""
        return self.label or _listed("product", self.product)


def _combination(data: object) -> Combination:
    for name in COMBINATIONS:
        inside = name in cast("dict[str, object]", data) if isinstance(data, dict) else hasattr(data, name)
        if inside:
            return name
    return "source"


def _branch(data: object) -> str:
    # The brackets let error messages leave the branch out of the place they name.
    return f"[{_combination(data)}]"


AnyEntry = SourceEntry | GateEntry | CascadeEntry | MinEntry | ProductEntry
RewardEntry = Annotated[
    Annotated[SourceEntry, Tag("[source]")]
    | Annotated[GateEntry, Tag("[gate]")]
    | Annotated[CascadeEntry, Tag("[cascade]")]
    | Annotated[MinEntry, Tag("[min]")]
    | Annotated[ProductEntry, Tag("[product]")],
    Discriminator(_branch),
]
"""One entry of `rewards`."""

for _model in (GateEntry, CascadeEntry, MinEntry, ProductEntry):
    _model.model_rebuild()


def sources(entry: AnyEntry, where: str = "") -> Iterator[tuple[str, SourceEntry]]:
    """Every source of an entry with its place in the config, in order."""
    if isinstance(entry, SourceEntry):
        yield where, entry
    elif isinstance(entry, GateEntry):
        yield from sources(entry.gate, f"{where}.gate")
        yield from sources(entry.then, f"{where}.then")
    else:
        for index, member in enumerate(entry.members):
            yield from sources(member, f"{where}.{_combination(entry)}[{index}]")


class RayConfig(BaseModel):
    """A reward pool on a Ray cluster; a text alone is its `address`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    address: str = Field(default="auto", min_length=1)
    """`auto`: the cluster that this machine belongs to; `local`: one that is started for this run; or `HOST:PORT`."""
    workers_per_actor: int = Field(default=4, ge=1)
    """Most of `judging.workers` in one actor; actors are spread over the nodes."""
    cpus_per_worker: float = Field(default=1.0, ge=0)
    """CPUs that each worker takes of the cluster for as long as the run lasts; 0 counts nothing."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Further resources of the cluster that each actor takes, for example `{ judging = 1 }`."""
    lost_after_s: float = Field(default=30.0, gt=0)
    """An actor that gives no sign of life for this long is ended and replaced."""


class JudgingConfig(BaseModel):
    """How candidates are judged, and what happens where that fails."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    workers: int = Field(default=2, ge=1, le=16384)
    """Candidates that may be judged at once in killable worker processes."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Wall time of one candidate, for sources in worker processes and inline ones alike; default what each declares."""
    memory_mib: int | None = Field(default=None, gt=0)
    """Memory that judging one candidate may add in a worker; default what each source declares."""
    on_failed: Literal["mask", "stop"] = "mask"
    """What one failed verdict does: its reward is masked, or the run stops. Never a number."""
    on_unhealthy: Literal["stop", "mask"] = "stop"
    """What a source does that fails too often: it stops the run, or all its verdicts are masked until it recovers."""
    stop_if_failed_above: float = Field(default=0.5, gt=0, le=1)
    """Share of a source's last 50 verdicts that may be failed before it is unhealthy."""
    cache: bool = True
    """Whether equal inputs to a deterministic source are judged once."""
    start_timeout_s: float = Field(default=60.0, gt=0)
    """How long a worker may take to import and build a source."""
    ray: RayConfig | None = None
    """Judge on a Ray cluster: its address, or a table; default on this machine alone."""

    @field_validator("ray", mode="before")
    @classmethod
    def _address_alone(cls, ray: Any) -> Any:
        return {"address": ray} if isinstance(ray, str) else ray


def _listed(word: str, members: "tuple[RewardEntry, ...]") -> str:
    return f"{word}({', '.join(member.name for member in members)})"
