"""The tree of errors that assay raises on purpose.

    AssayError
    |-- ConfigError     a config, a flag, a data row or a component option is wrong (the user's mistake)
    |-- PluginError     a plugin cannot be imported, built, or breaks a rule of the registry
    |-- JudgingError    judging as a whole cannot go on (a source is unhealthy, a worker cannot start)
    |-- SandboxError    a sandbox cannot start or lost its jail (never the job's own failure)
    |-- EngineError     a rollout engine cannot generate or take new weights
    |-- TrainingError   an update cannot be made (no checkpoint to resume, non-finite loss)
    `-- StoreError      a run folder is locked, damaged, of another version, or the disk is full

A reward source may raise `TransientError`, which stands outside the tree: it asks for another try and is never shown.

Every message follows one pattern: *where: what is wrong; what was found; what to do.* Identifiers are written with
`!r`, numbers with units. The command line prints the message without a traceback and exits with `exit_code`.
"""

import difflib
from collections.abc import Iterable


class AssayError(Exception):
    """Root of all errors raised on purpose; its text is written for the user."""

    exit_code = 2
    """What the command line exits with: 2 for the user's mistake, 1 for ours, 3 past a failure limit."""


class ConfigError(AssayError):
    """A config, a flag, a data row or a component option is wrong."""


class PluginError(AssayError):
    """A plugin cannot be imported or built, or breaks a rule of the registry."""


class JudgingError(AssayError):
    """Judging as a whole cannot go on; one bad item never raises this."""

    exit_code = 3


class SandboxError(AssayError):
    """A sandbox cannot start or lost its jail; a job's own failure is a result, never this."""


class EngineError(AssayError):
    """A rollout engine cannot generate or cannot take new weights."""


class TrainingError(AssayError):
    """An update cannot be made."""


class StoreError(AssayError):
    """A run folder is locked, damaged, written by another version, or the disk is full."""


class TransientError(Exception):
    """Raised by a reward source for a failure that may pass by itself (a busy judge, a dropped connection).

    The guard tries again with growing pauses, up to the source's declared `retries`; any other error is tried once.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The sentence ` Did you mean 'x'?` with the nearest of `known`, or an empty string when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
