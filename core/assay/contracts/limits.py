"""What a source, a worker or a job may use."""

from typing import Literal

from pydantic import Field

from assay.contracts._contract import Contract
from assay.contracts.verdict import Fault

Isolation = Literal["inline", "process", "remote"]
"""Where a source runs: in the event loop of the run, in a killable worker process, or behind an address."""


class ResourceLimits(Contract):
    """Bounds of one call in a killable process."""

    wall_s: float = Field(default=5.0, gt=0)
    """Wall time; at the limit the whole process tree is killed."""
    cpu_s: float | None = Field(default=None, gt=0)
    """CPU time of the call, or None for no bound but the wall."""
    memory_mib: int | None = Field(default=1024, gt=0)
    """Address space that the call may add to what the worker had before it."""
    output_kib: int = Field(default=256, gt=0)
    """Captured standard output and error; the rest is dropped and counted."""
    result_kib: int = Field(default=4096, gt=0)
    """Size of the answer as JSON; a larger one is a failure of the call."""


class Limits(Contract):
    """How a reward source likes to be called, and what its answers may be."""

    max_batch: int = Field(default=1, ge=1)
    """Largest number of candidates in one call of `judge`."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Token budget of one call for sources that run a model; candidates are then sorted by length."""
    max_wait_s: float = Field(default=0.005, ge=0)
    """How long a batch that is not full may wait for more."""
    concurrency: int = Field(default=8, ge=1)
    """Calls of `judge` that may be under way at once."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Wall time of one candidate."""
    cpu_s: float | None = Field(default=None, gt=0)
    """CPU time of one candidate, in a worker."""
    memory_mib: int | None = Field(default=1024, gt=0)
    """Memory that one candidate may add, in a worker."""
    retries: int = Field(default=0, ge=0)
    """Further attempts after an error marked transient."""
    scope: Literal["rollout", "group"] = "rollout"
    """Whether one candidate is one rollout or a whole group."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value; anything outside is *failed*."""
    limit_fault: Fault = "ours"
    """Whose doing a timeout or a kill is; `candidate` where the candidate's text decides the cost."""
    deterministic: bool = True
    """Whether equal inputs give equal verdicts; only then are verdicts cached."""
    device: str | None = None
    """Sources that name the same device share it fairly."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the device among the sources that name it."""
