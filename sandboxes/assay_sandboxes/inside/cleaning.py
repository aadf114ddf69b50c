"""Empties a work folder without recursion and without following links; gives up early, so that the jail is replaced."""

import os

MAX_DEPTH = 40
MAX_ENTRIES = 5_000


def empty(folder: int) -> bool:
    """Whether everything below the open directory `folder` could be removed.

    Stops at a tree deeper or larger than an honest program makes: a jail is replaced faster than that is removed.
    """
    try:
        return _remove_below(folder, MAX_DEPTH, [MAX_ENTRIES])
    except OSError:
        return False


def _remove_below(folder: int, depth: int, left: list[int]) -> bool:
    if depth == 0:
        return False
    os.fchmod(folder, 0o700)
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        left[0] -= 1
        if left[0] < 0:
            return False
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, 0o700, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not _remove_below(inner, depth - 1, left):
                return False
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)
    return True
