"""Started as root: becomes an unprivileged user, with unreachable folders put within its reach, and starts a command.

Its settings are a JSON object in the first argument: `uid`, `binds` (pairs of folder and empty folder;
bound in a mount namespace of this process alone, gone with it), `cover` (pairs of a closed folder and a folder below it
that must stay reachable at its own path: the closed one is hidden behind an empty one with just that in it), `command`.
"""

import ctypes
import json
import os
import sys

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


def main() -> None:
    """Do it; the exec ends this program."""
    settings = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    covers = settings.get("cover", [])
    if settings["binds"] or covers:
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
            raise OSError(ctypes.get_errno(), "cannot make a mount namespace to bring the interpreter within reach")
        for source, target in settings["binds"]:
            if libc.mount(source.encode(), target.encode(), None, MS_BIND | MS_REC, None):
                raise OSError(ctypes.get_errno(), f"cannot bind {source}")
        for closed, kept in covers:
            # The way back to the kept folder is a descriptor: its path is about to be hidden.
            fd = os.open(kept, os.O_PATH)
            if libc.mount(b"tmpfs", closed.encode(), b"tmpfs", 0, b"mode=0755,size=1m"):
                raise OSError(ctypes.get_errno(), f"cannot cover {closed}")
            os.makedirs(kept, mode=0o755)
            if libc.mount(f"/proc/self/fd/{fd}".encode(), kept.encode(), None, MS_BIND | MS_REC, None):
                raise OSError(ctypes.get_errno(), f"cannot bind {kept}")
            os.close(fd)
    os.setgroups([])
    os.setresgid(settings["uid"], settings["uid"], settings["uid"])
    os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    os.umask(0o022)
    os.execvp(settings["command"][0], settings["command"])  # noqa: S606 - the command is ours
