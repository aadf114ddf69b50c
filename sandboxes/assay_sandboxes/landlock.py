"""The tier for machines without root, namespaces or containers: Landlock, seccomp and resource limits on each job.

Not bounded: the total of the disk (only each file's size), and memory outside the job's own address space.
"""

import ctypes
import os
from contextlib import suppress

from assay.contracts.sandbox import Guarantee
from assay.errors import SandboxError
from assay_sandboxes.home import Home
from assay_sandboxes.local import LocalBackend, need_linux
from assay_sandboxes.options import LandlockOptions

CREATE_RULESET = 444


def abi() -> int:
    """The kernel's Landlock version, 0 where there is none."""
    with suppress(OSError, AttributeError):
        return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, 0, 1)))
    return 0


class Landlock(LocalBackend):
    """Starts zygotes whose children restrict themselves."""

    name = "landlock"

    def __init__(self, options: LandlockOptions, home: Home) -> None:
        """Look for Landlock; raises `SandboxError` in one sentence where the kernel has none."""
        need_linux(self.name)
        version = abi()
        if version < 1:
            raise SandboxError(
                f"sandbox 'landlock': this kernel ({os.uname().release}) has no Landlock; it needs Linux 5.13 or later "
                "with landlock among its security modules; use 'docker' or 'bubblewrap'"
            )
        super().__init__(options, home, landlock=True, seccomp=True, drop=True)
        held: set[Guarantee] = {"no_network", "private_files", "memory_limit", "cpu_limit", "kills_tree"}
        if os.getuid() == 0:
            held.add("other_user")
        self._held = frozenset(held)

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What holds here."""
        return self._held

    @property
    def gaps(self) -> dict[Guarantee, str]:
        """Why the others do not hold."""
        gaps: dict[Guarantee, str] = {
            "disk_limit": "each file is bounded, but their total is not: there is no mount to bound"
        }
        if "other_user" not in self._held:
            gaps["other_user"] = "assay does not run as root, so jobs run as your user"
        if "kills_tree" not in self._held:
            gaps["kills_tree"] = "this kernel's Landlock does not scope signals"
        return gaps


__all__ = ["Landlock", "abi"]
