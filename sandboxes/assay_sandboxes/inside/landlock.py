"""Landlock: a process gives up the file system, the network, and signals to others, without root or namespaces."""

import ctypes
import os
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
EXECUTE, READ_FILE, READ_DIR = 1 << 0, 1 << 2, 1 << 3
SCOPE_ABSTRACT_UNIX, SCOPE_SIGNAL = 1, 2
# Access rights to files, by ABI version: each adds to the ones before.
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
NETWORK_RIGHTS = 3


def abi(libc: ctypes.CDLL) -> int:
    """The kernel's Landlock version, 0 where there is none."""
    return max(0, libc.syscall(CREATE_RULESET, None, 0, 1))


class Ruleset:
    """Rules made once by the zygote and put on each child."""

    def __init__(self, libc: ctypes.CDLL, *, readable: list[str], writable: list[str]) -> None:
        """Allow reading and executing below `readable` and everything below `writable`; nothing elsewhere."""
        version = abi(libc)
        if version < 1:
            raise OSError("this kernel has no Landlock (Linux 5.13 or later, with landlock among its `lsm=` modules)")
        self._libc = libc
        files = max(item for item in FILE_RIGHTS.items() if item[0] <= version)[1]
        network = NETWORK_RIGHTS if version >= 4 else 0
        scoped = (SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL) if version >= 6 else 0
        attributes = struct.pack("QQQ", files, network, scoped)[: 24 if version >= 6 else 16 if version >= 4 else 8]
        self._fd = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "landlock_create_ruleset failed")
        for path in readable:
            self._allow(path, EXECUTE | READ_FILE | READ_DIR)
        for path in writable:
            self._allow(path, files)

    def _allow(self, path: str, rights: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if not os.path.isdir(path):
                rights &= EXECUTE | READ_FILE | 1 << 1 | 1 << 14 | 1 << 15
            rule = struct.pack("=Qi", rights, fd)
            if self._libc.syscall(ADD_RULE, self._fd, PATH_BENEATH, rule, 0):
                raise OSError(ctypes.get_errno(), f"landlock_add_rule failed for {path}")
        finally:
            os.close(fd)

    def restrict(self) -> None:
        """Put the rules on the calling process for good."""
        if self._libc.prctl(38, 1, 0, 0, 0) or self._libc.syscall(RESTRICT_SELF, self._fd, 0):
            raise OSError(ctypes.get_errno(), "landlock_restrict_self failed")
