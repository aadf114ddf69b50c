"""Start, bound and kill a whole process tree; used by judging workers, sandboxes and supervisors of servers."""

from assay.process.command import Bounds, Finished, Outcome, Tree, run, run_blocking, start
from assay.process.tree import (
    become_subreaper,
    children,
    descendants,
    die_with_parent,
    kill_marked,
    kill_tree,
    reap,
)

__all__ = [
    "Bounds",
    "Finished",
    "Outcome",
    "Tree",
    "become_subreaper",
    "children",
    "descendants",
    "die_with_parent",
    "kill_marked",
    "kill_tree",
    "reap",
    "run",
    "run_blocking",
    "start",
]
