"""The sandboxes that this package offers."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from assay.component import BuildContext, Component
from assay.errors import SandboxError
from assay.hookspecs import hookimpl
from assay.protocols import Sandbox
from assay_sandboxes.options import (
    BubblewrapOptions,
    DockerOptions,
    LandlockOptions,
    SandboxOptions,
    SubprocessOptions,
)

O = TypeVar("O", bound=SandboxOptions)  # noqa: E741


def build_bubblewrap(options: BubblewrapOptions, _context: BuildContext) -> Sandbox:
    """A sandbox of bubblewrap jails."""
    from assay_sandboxes.bubblewrap import Bubblewrap

    return _build(options, lambda home: Bubblewrap(options, home))


def build_docker(options: DockerOptions, _context: BuildContext) -> Sandbox:
    """A sandbox of containers."""
    from assay_sandboxes.docker import Docker

    return _build(options, lambda home: Docker(options, home))


def build_landlock(options: LandlockOptions, _context: BuildContext) -> Sandbox:
    """A sandbox of processes bounded by Landlock, seccomp and resource limits."""
    from assay_sandboxes.landlock import Landlock

    return _build(options, lambda home: Landlock(options, home))


def build_subprocess(options: SubprocessOptions, _context: BuildContext) -> Sandbox:
    """Plain child processes, for development."""
    from assay_sandboxes.subprocess_dev import Subprocess

    if not options.unsafe:
        raise SandboxError(
            "sandbox 'subprocess': it protects nothing, a program can do whatever you can; set `unsafe = true` for "
            "programs that you wrote yourself, or use 'bubblewrap', 'docker' or 'landlock'"
        )
    return _build(options, lambda home: Subprocess(options, home))


def _build(options: SandboxOptions, backend: Callable[[Any], Any]) -> Sandbox:
    from assay_sandboxes.home import Home, sweep
    from assay_sandboxes.sandbox import JailedSandbox

    sweep()
    home = Home()
    try:
        made = backend(home)
    except BaseException:
        home.remove()
        raise

    def cleanup() -> None:
        made.close()
        home.remove()

    return JailedSandbox(made, options, cleanup=cleanup)


@hookimpl
def assay_sandboxes() -> Iterable[Component[Any, Sandbox]]:
    """Offer the four tiers; `rank` is the order in which the best that works is sought."""
    return [
        Component(
            "bubblewrap",
            BubblewrapOptions,
            build_bubblewrap,
            summary="Linux namespaces through bubblewrap, seccomp, limits; fresh namespaces for each job",
            facts={"rank": "1", "needs": "user namespaces and bwrap"},
        ),
        Component(
            "docker",
            DockerOptions,
            build_docker,
            summary="containers of a Docker engine, one for each slot",
            extra="docker",
            facts={"rank": "2", "needs": "a Docker engine"},
        ),
        Component(
            "landlock",
            LandlockOptions,
            build_landlock,
            summary="Landlock, seccomp and limits on plain processes; bounds neither the disk nor what /proc shows",
            facts={"rank": "3", "needs": "Linux 5.13 or later"},
        ),
        Component(
            "subprocess",
            SubprocessOptions,
            build_subprocess,
            summary="plain processes without any protection, for development; needs `unsafe = true`",
            facts={"rank": "4", "needs": "nothing"},
        ),
    ]
