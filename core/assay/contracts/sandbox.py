"""A job for a sandbox and what became of it."""

from typing import Literal

from pydantic import Field

from assay.contracts._contract import Contract

Guarantee = Literal[
    "no_network", "private_files", "memory_limit", "disk_limit", "cpu_limit", "kills_tree", "other_user"
]
Outcome = Literal["exited", "crashed", "timed_out", "out_of_memory", "output_limit"]


class JobLimits(Contract):
    """Bounds of one job."""

    wall_s: float = Field(default=10.0, gt=0)
    cpu_s: float = Field(default=2.0, gt=0)
    memory_mib: int = Field(default=512, gt=0)
    disk_mib: int = Field(default=32, gt=0)
    output_kib: int = Field(default=64, gt=0)
    """Per stream; more ends the job with `output_limit`."""
    processes: int = Field(default=16, gt=0)


class Job(Contract):
    """One program, and either one standard input or a list of calls."""

    language: str = "python"
    source: str
    stdin: str = ""
    calls: tuple[str, ...] | None = None
    """For call mode: each entry is a JSON object `{"fn": name, "args": [...], "kwargs": {...}}` in the tagged form of
    the sandbox protocol; values come back in `RunResult.returns`, and nothing expected ever goes in."""
    files: dict[str, str] = Field(default_factory=dict)
    """Further files in the work folder."""
    limits: JobLimits = JobLimits()


class RunResult(Contract):
    """What became of a job."""

    outcome: Outcome
    exit_code: int | None = None
    """Exit status when exited."""
    signal: int | None = None
    """Signal when crashed or killed."""
    stdout: str = ""
    stderr: str = ""
    returns: tuple[str, ...] = ()
    """For call mode: one tagged JSON text per finished call, in order."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mib: float = 0.0
    tier: str = ""
    """Name of the sandbox that ran it."""
