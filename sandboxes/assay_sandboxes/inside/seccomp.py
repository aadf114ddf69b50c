"""A seccomp filter that leaves a program its own memory, its own files and its own threads, and nothing else.

Everything not named here is allowed; what is named fails with EPERM, and calls of another ABI kill the process.
Most of it is given up once by the zygote; a child adds a short filter (the kernel tries a new filter with every number,
so its length is what it costs).
"""

import ctypes
import os
import struct

LOAD_WORD, JUMP_EQUAL, JUMP_SET, JUMP_GREATER_EQUAL, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 1, 38
CLONE_THREAD = 0x00010000
AF_UNIX = 1
X32 = 0x40000000
ANY_PID = 0x7EA51D00
"""Stands for the child's own process id, which is not known when a filter is assembled; no system has such a one."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# One row per system call: x86_64 number, aarch64 number (None where it does not exist).
FORKS: dict[str, tuple[int | None, int | None]] = {"fork": (57, None), "vfork": (58, None)}
CLONE: tuple[int | None, int | None] = (56, 220)
CLONE3: tuple[int | None, int | None] = (435, 435)
EXECS: dict[str, tuple[int | None, int | None]] = {"execve": (59, 221), "execveat": (322, 281)}
SOCKETS: dict[str, tuple[int | None, int | None]] = {"socket": (41, 198), "socketpair": (53, 199)}
DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "mount_setattr": (442, 442), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    # large kernel surfaces
    "bpf": (321, 280), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "fanotify_init": (300, 262), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443), "modify_ldt": (154, None),
    "lookup_dcookie": (212, 18), "personality": (135, 92), "vmsplice": (278, 75), "seccomp": (317, 277),
    # memory that outlives or escapes the limits
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    # the machine
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, None), "ioperm": (173, None), "uselib": (134, None), "ustat": (136, None), "_sysctl": (156, None),
}  # fmt: skip
# Where files of the same user are in sight, what Landlock does not cover: attributes of files by path.
ATTRIBUTES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None),
    "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "setpriority": (141, 140), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
# Calls whose first argument is a process: only the caller's own (or 0 for prlimit64).
SIGNALS: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
}  # fmt: skip
FOREIGN: dict[str, tuple[int | None, int | None]] = {"tkill": (200, 130), "pidfd_send_signal": (424, 424)}
LIMITS: dict[str, tuple[int | None, int | None]] = {"prlimit64": (302, 261)}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Filter:
    """A filter assembled once, and installed on one process for good; filters of one process add up."""

    def __init__(self, denied: dict[str, tuple[int | None, int | None]], special: "list[Special]") -> None:
        """Refuse every call in `denied`, and those of `special` by their arguments.

        Raises `OSError` on a machine that is neither x86_64 nor aarch64.
        """
        machine = os.uname().machine
        if machine not in ARCHITECTURES:
            raise OSError(f"no table of system calls for {machine!r}; x86_64 and aarch64 are known")
        self._column = 0 if machine == "x86_64" else 1
        numbers = [row[self._column] for row in denied.values()]
        # Assembled before the zygote forks: a child only puts its own number in.
        self._code = self._assemble(
            ARCHITECTURES[machine], sorted(number for number in numbers if number is not None), special
        )

    def _assemble(self, architecture: int, denied: list[int], special: "list[Special]") -> bytes:
        lines = [_row(LOAD_WORD, ARCHITECTURE), _row(JUMP_EQUAL, architecture, 1, 0), _row(RETURN, KILL)]
        lines += [_row(LOAD_WORD, NUMBER), _row(JUMP_GREATER_EQUAL, X32, 0, 1), _row(RETURN, KILL)]
        for rule in special:
            number = rule.call[self._column]
            if number is not None:
                lines += [_row(JUMP_EQUAL, number, 0, len(rule.lines)), *rule.lines]
        lines += _search(_ranges(denied))
        return b"".join(lines)

    def install(self, libc: ctypes.CDLL) -> None:
        """Put the filter on the calling process; raises `OSError` where the kernel refuses."""
        code = self._code.replace(struct.pack("I", ANY_PID), struct.pack("I", os.getpid()))
        buffer = ctypes.create_string_buffer(code, len(code))
        program = _Program(len(code) // 8, ctypes.addressof(buffer))
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0
        ):
            raise OSError(ctypes.get_errno(), "seccomp filter refused")


class Special:
    """A call that is judged by its first argument; the last line of `lines` must return."""

    def __init__(self, call: tuple[int | None, int | None], *lines: bytes) -> None:
        """Run `lines` for `call`."""
        self.call = call
        self.lines = lines


def _row(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


_DENY, _ALLOW = _row(RETURN, ERRNO | EPERM), _row(RETURN, ALLOW)
_ARGUMENT = _row(LOAD_WORD, FIRST_ARGUMENT)
_ONLY_UNIX = (_ARGUMENT, _row(JUMP_EQUAL, AF_UNIX, 0, 1), _ALLOW, _DENY)
_ONLY_SELF = (_ARGUMENT, _row(JUMP_EQUAL, ANY_PID, 0, 1), _ALLOW, _DENY)
_SELF_OR_ZERO = (_ARGUMENT, _row(JUMP_EQUAL, 0, 1, 0), _row(JUMP_EQUAL, ANY_PID, 0, 1), _ALLOW, _DENY)
_ONLY_THREADS = (_ARGUMENT, _row(JUMP_SET, CLONE_THREAD, 0, 1), _ALLOW, _DENY)


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Runs of neighbours among sorted `numbers`, as first and last."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _search(ranges: list[tuple[int, int]]) -> list[bytes]:
    """Lines that deny what lies in `ranges` and allow the rest, by halving: the kernel runs them for every number."""
    if not ranges:
        return [_ALLOW]
    if len(ranges) == 1:
        first, last = ranges[0]
        return [_row(JUMP_GREATER_EQUAL, first, 0, 1), _row(JUMP_GREATER_EQUAL, last + 1, 0, 1), _ALLOW, _DENY]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    if len(below) < 256:
        return [_row(JUMP_GREATER_EQUAL, ranges[middle][0], len(below), 0), *below, *above]
    raise AssertionError("a table of system calls that is too long for one jump")


def for_zygote() -> Filter:
    """What neither the zygote nor any of its children ever needs; installed once, inherited by every child."""
    never = {name: row for name, row in DENIED.items() if name != "mount"}
    return Filter(never, [Special(SOCKETS["socket"], *_ONLY_UNIX), Special(SOCKETS["socketpair"], *_ONLY_UNIX)])


def for_child(*, fork: bool = False, execute: bool = False, shared_files: bool = False) -> Filter:
    """What a child gives up beside.

    `fork` and `execute` say whether new processes and new programs are allowed (compilers need both, a compiled program
    the second); `shared_files` is for jails without a mount namespace, where signals and attributes need care too.
    """
    denied = {"mount": DENIED["mount"]}
    special: list[Special] = []
    if not fork:
        denied |= FORKS
        # libc falls back to clone, whose flags a filter can read.
        special += [Special(CLONE3, _row(RETURN, ERRNO | ENOSYS)), Special(CLONE, *_ONLY_THREADS)]
    if not execute:
        denied |= EXECS
    if shared_files:
        denied |= ATTRIBUTES | FOREIGN | {"socket": SOCKETS["socket"]}
        special += [Special(row, *_ONLY_SELF) for row in SIGNALS.values()]
        special += [Special(row, *_SELF_OR_ZERO) for row in LIMITS.values()]
    return Filter(denied, special)
