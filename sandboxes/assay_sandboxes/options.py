"""What can be configured of a sandbox, one model for each tier."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from assay.component import Options


class Language(BaseModel):
    """How programs of one language are built and run; `{source}` and `{program}` stand for file names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    file: str
    """Name of the source file in the work folder."""
    build: tuple[str, ...] = ()
    """Command line of the build step, empty where there is none; it must leave `{program}`."""
    run: tuple[str, ...]
    """Command line of one execution."""
    version: tuple[str, ...]
    """Command line that prints the tool's version."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment of both steps, beside the jail's own."""
    sparse: bool = False
    """Whether the runtime reserves far more address space than it uses, so that only written memory is bounded."""


class SandboxOptions(Options):
    """What every tier can be told."""

    slots: int = Field(default=2, ge=1, le=256)
    """Jails that may be busy at once; each is started when it is first needed and kept."""
    preload: tuple[str, ...] = ()
    """Modules that the jail imports once, so that jobs find them loaded."""
    import_from: tuple[str, ...] = ()
    """Further folders that jobs may import from, read-only (absolute paths)."""
    disk_mib: int = Field(default=32, ge=1)
    """Size of the work folder where the jail, and not each job, has one."""
    build_disk_mib: int = Field(default=64, ge=1)
    """Size of the work folder of a build step."""
    build_wall_s: float = Field(default=30.0, gt=0)
    """Wall time of a build step."""
    build_memory_mib: int = Field(default=2048, gt=0)
    """Memory of a build step."""
    max_source_kib: int = Field(default=256, ge=1)
    """Largest program; a longer one is not run at all."""
    max_stdin_kib: int = Field(default=16384, ge=1)
    """Largest standard input."""
    recycle_after: int = Field(default=5000, ge=1)
    """Jobs after which a jail is replaced as a matter of course."""
    languages: dict[str, Language] = Field(default_factory=dict)
    """Further languages, or other command lines for known ones."""


class BubblewrapOptions(SandboxOptions):
    """Options of `bubblewrap`."""

    namespaces_per_job: bool = True
    """Whether each job gets process, mount and IPC namespaces and a work folder of its own."""
    bwrap: Path | None = None
    """The bwrap program; by default the one on the PATH or beside the interpreter."""


class DockerOptions(SandboxOptions):
    """Options of `docker`."""

    image: str | None = None
    """An image with a Python 3.11 or later as `python3`; by default one is built from the Python that runs assay."""
    memory_mib: int = Field(default=2048, ge=64)
    """Memory of one container, all of it together."""
    pids: int = Field(default=64, ge=8)
    """Processes and threads of one container."""


class LandlockOptions(SandboxOptions):
    """Options of `landlock`."""


class SubprocessOptions(SandboxOptions):
    """Options of `subprocess`."""

    unsafe: bool = False
    """Must be true: this tier protects nothing and is for development with programs that you wrote yourself."""
