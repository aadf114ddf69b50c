"""New namespaces for one child: its own processes, mounts and IPC, and a fresh work folder with limits."""

import ctypes
import os
import signal

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x08000000, 0x20000000
MS_NOSUID, MS_NODEV = 2, 4
CLONE = {"x86_64": 56, "aarch64": 220}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION_3 = 0x20080522
INODES = 4096


def fork_apart(library: ctypes.PyDLL) -> int:
    """Like `os.fork`, the child in new pid, mount and ipc namespaces, where it is process 1.

    Raises `OSError` where the kernel refuses. libc's cached thread id needs no repair: parent and child are both
    process 1 of their namespaces. `library` must be a `PyDLL`, so that the interpreter's lock is held throughout.
    """
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | signal.SIGCHLD
    pid = library.syscall(CLONE[os.uname().machine], flags, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, "clone with new namespaces failed")
    return pid


def mount_work(libc: ctypes.CDLL, path: str, size: int) -> None:
    """Put an empty tmpfs of at most `size` bytes and `INODES` files over `path`, in the caller's mount namespace."""
    options = f"size={size},nr_inodes={INODES},mode=0700".encode()
    if libc.mount(b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options):
        raise OSError(ctypes.get_errno(), f"cannot mount the work folder on {path}")


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up every capability of the calling process for good."""
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(47, 4, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    if libc.syscall(CAPSET[os.uname().machine], header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "cannot drop capabilities")
