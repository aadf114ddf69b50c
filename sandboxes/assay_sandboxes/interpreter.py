"""Which files make up the Python that jails run, and whether an unprivileged user can reach them."""

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Interpreter:
    """The installed Python: the one that this process runs, without its site packages."""

    executable: Path
    prefix: Path
    library: Path
    """The folder that holds the standard library (`.../lib`)."""
    site_packages: Path
    """Hidden inside jails unless asked for."""

    @property
    def in_usr(self) -> bool:
        """Whether the system's folders hold it anyway."""
        return self.prefix == Path("/usr")


def installed() -> Interpreter:
    """The Python that this process was started with, past any virtual environment."""
    base = getattr(sys, "_base_executable", sys.executable)
    standard = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    prefix = Path(sys.base_prefix).resolve()
    return Interpreter(
        executable=Path(base).resolve(),
        prefix=prefix,
        library=prefix / standard.resolve().relative_to(prefix).parts[0],
        site_packages=standard.resolve() / "site-packages",
    )


def reachable(path: Path) -> bool:
    """Whether any user can reach and read `path`."""
    for parent in path.parents:
        if not parent.stat().st_mode & 0o001:
            return False
    needed = 0o005 if path.is_dir() else 0o004
    return path.stat().st_mode & needed == needed


SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/work",
    "TMPDIR": "/work",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""All that a jail's environment holds."""


FLAGS = ("-S", "-s", "-P", "-B")
"""No site packages, nothing from the current folder, no bytecode written."""


def command(interpreter: Interpreter, folder: str, program: str, settings: str) -> list[str]:
    """The command line that runs `main` of a module of `assay_sandboxes.inside`, imported from `folder`."""
    start = f"import sys; sys.path.insert(0, {folder!r}); from assay_sandboxes.inside.{program} import main; main()"
    return [os.fspath(interpreter.executable), *FLAGS, "-c", start, settings]
