"""Plain child processes: no protection at all, for development on machines where nothing else works."""

from assay.contracts.sandbox import Guarantee
from assay_sandboxes.home import Home
from assay_sandboxes.local import LocalBackend, need_linux
from assay_sandboxes.options import SubprocessOptions


class Subprocess(LocalBackend):
    """Starts zygotes whose children only have resource limits, for honest mistakes."""

    name = "subprocess"

    def __init__(self, options: SubprocessOptions, home: Home) -> None:
        """Nothing to look for."""
        need_linux(self.name)
        super().__init__(options, home, landlock=False, seccomp=False, drop=False)

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Limits on CPU time; nothing that a program could not undo or evade is promised beside it."""
        return frozenset({"cpu_limit"})

    @property
    def gaps(self) -> dict[Guarantee, str]:
        """Why the others do not hold."""
        names: tuple[Guarantee, ...] = (
            "no_network", "private_files", "memory_limit", "disk_limit", "kills_tree", "other_user",
        )  # fmt: skip
        return dict.fromkeys(names, "programs run as plain processes of yours")
