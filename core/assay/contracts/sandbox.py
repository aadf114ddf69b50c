"""A job for a sandbox and what became of it."""

from typing import Literal

from pydantic import Field

from assay.contracts._contract import Contract

Guarantee = Literal[
    "no_network", "private_files", "memory_limit", "disk_limit", "cpu_limit", "kills_tree", "other_user"
]
"""no_network: no packet and no name leaves. private_files: nothing of the host but the interpreter, the tools and the
job's own files can be read, nothing outside the job's folder written, and the folder is empty for the next job.
memory_limit, disk_limit, cpu_limit: a job's total is bounded. kills_tree: nothing that a job started outlives it.
other_user: the job's user owns nothing else on the host."""
Outcome = Literal["exited", "crashed", "timed_out", "out_of_memory", "output_limit", "build_failed"]
"""How a job ended: by its own exit; by a signal; at a wall or CPU limit; at the memory limit; at an output cap; its
build step failed, so that there was nothing to run."""


class JobLimits(Contract):
    """Bounds of one job."""

    wall_s: float = Field(default=10.0, gt=0)
    """Wall time of the process; the slot is free again at most half a second later."""
    cpu_s: float = Field(default=2.0, gt=0)
    """CPU time of the process, all threads together."""
    call_wall_s: float | None = Field(default=None, gt=0)
    """In call mode, wall time of each call; the first also pays for the program's own start."""
    call_cpu_s: float | None = Field(default=None, gt=0)
    """In call mode, CPU time of each call."""
    memory_mib: int = Field(default=512, gt=0)
    disk_mib: int = Field(default=32, gt=0)
    output_kib: int = Field(default=64, gt=0)
    """Per stream; more ends the job with `output_limit`."""
    processes: int = Field(default=16, gt=0)
    """Threads, and processes where the tier lets a job have any."""


class Job(Contract):
    """One program, and either one standard input or a list of calls."""

    language: str = "python"
    source: str
    stdin: str = ""
    calls: tuple[str, ...] | None = None
    """For call mode (Python only): each entry is a JSON object `{"fn": name, "args": [...], "kwargs": {...}}` with
    arguments in the tagged form of `assay.contracts.tagged`; `fn` is a function, `Class.method` or `Class().method`.
    Answers come back in `RunResult.returns`, and nothing expected ever goes in."""
    files: dict[str, str] = Field(default_factory=dict)
    """Further files in the work folder."""
    limits: JobLimits = JobLimits()
    trusted: bool = False
    """Whether the program is ours (a special judge, a test): it then runs in a jail that never sees a candidate."""


class RunResult(Contract):
    """What became of a job."""

    outcome: Outcome
    exit_code: int | None = None
    """Exit status when exited."""
    signal: int | None = None
    """Signal when crashed or killed."""
    stdout: str = ""
    """What was written, decoded as UTF-8; bytes that are not are written as backslash escapes."""
    stderr: str = ""
    returns: tuple[str, ...] = ()
    """For call mode: one JSON text per finished call, in order: `{"v": tagged value}` or
    `{"e": name of the exception, "m": message}`; fewer than calls where the process ended early."""
    detail: str = ""
    """Which limit was passed, or what ended the program before its first call."""
    build_log: str = ""
    """What the compiler said."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mib: float = 0.0
    tier: str = ""
    """Name of the sandbox that ran it."""
    tool: str = ""
    """Version of the interpreter or compiler."""
