"""The folder that a sandbox keeps on the host while it lives: the zygote's program, locks, and empty mount points.

Its name carries the owner's process id and start time, so that a later start can tell what a killed run left behind.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import assay.contracts.tagged
from assay_sandboxes.pipes import remove_tree

PREFIX = "assay-sandbox"
NAME = re.compile(rf"{PREFIX}-(\w+)-(\d+)-(\d+)-\w+")
INSIDE = Path(__file__).with_name("inside")
PACKAGES = ("assay", "assay.contracts", "assay_sandboxes", "assay_sandboxes.inside")
MODULES = ("frames", "cleaning", "landlock", "namespaces", "seccomp", "child", "watch", "zygote", "launch")


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


class Owner(NamedTuple):
    """Names a process beyond doubt: where its number counts, the number, and when it started."""

    place: str
    """This boot of this machine, and the process namespace: elsewhere the number means another process."""
    pid: int
    started: int

    @property
    def is_gone(self) -> bool:
        """Whether the process no longer runs; False for one that cannot be seen from here."""
        return self.place == _place() and start_time(self.pid) != self.started


def owner() -> Owner:
    """This process."""
    return Owner(_place(), os.getpid(), start_time(os.getpid()) or 0)


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]
        return boot + "x" + re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    except OSError:
        return "unknown"


def zygote_modules() -> dict[str, str]:
    """Text of every module that a zygote imports, each after those that it imports itself; packages are empty."""
    modules: dict[str, str] = dict.fromkeys(PACKAGES, "")
    modules["assay.contracts.tagged"] = Path(assay.contracts.tagged.__file__).read_text("utf-8")
    for name in MODULES:
        modules[f"assay_sandboxes.inside.{name}"] = (INSIDE / f"{name}.py").read_text("utf-8")
    return modules


class Home:
    """A sandbox's folder; readable by everybody, writable by its owner."""

    def __init__(self) -> None:
        """Make the folder and put the zygote's program into it."""
        mine = owner()
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{mine.place}-{mine.pid}-{mine.started}-"))
        self.path.chmod(0o755)
        self.inside = self.path / "inside"
        """The folder that jails import the zygote from."""
        for name, text in zygote_modules().items():
            file = self.inside.joinpath(*name.split("."))
            file = file / "__init__.py" if name in PACKAGES else file.with_suffix(".py")
            file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            file.write_text(text, "utf-8")

    def work_folder(self, uid: int | None) -> Path:
        """A new empty folder for a jail without a file system of its own, owned by `uid` where one is given."""
        folder = Path(tempfile.mkdtemp(prefix="work-", dir=self.path))
        if uid is not None:
            os.chown(folder, uid, uid)
        return folder

    def remove(self) -> None:
        """Remove the folder and everything in it."""
        remove_tree(self.path)


def sweep() -> int:
    """Number of folders removed that were left behind by processes that no longer run."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        match = NAME.fullmatch(folder.name)
        if match and Owner(match[1], int(match[2]), int(match[3])).is_gone and _is_ours(folder):
            remove_tree(folder)
            removed += 1
    return removed


def _is_ours(folder: Path) -> bool:
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return facts.st_uid == os.getuid() and not folder.is_symlink()
