"""This process's connection to a Ray cluster."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# ray is annotated only in part.
from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from assay.errors import AssayError, ConfigError

T = TypeVar("T")
_CONNECTING = threading.Lock()
_CAUSE_CHARACTERS = 300
_LISTENS_S = 10.0


class LostError(AssayError):
    """An actor could not be asked."""


class Cluster(NamedTuple):
    """A connection."""

    ray: Any
    """The module `ray`, connected."""
    address: str
    """As it was asked for."""

    def actor(self, kind: type[Any], *arguments: Any, **options: Any) -> Any:
        """A handle to a new actor; it is being placed and started meanwhile.

        Ray restarts and retries nothing by itself: a repeated call could judge twice.
        """
        fixed = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 4096, "scheduling_strategy": "SPREAD"}
        return self.ray.remote(kind).options(**fixed, **options).remote(*arguments)

    def kill(self, actor: Any) -> None:
        """End an actor's process, also one that no longer answers."""
        self.ray.kill(actor, no_restart=True)

    def room(self) -> str:
        """What the cluster has and what of it is free, for messages."""
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        return f"{total.get('CPU', 0):g} CPUs on {len(self.ray.nodes())} nodes, {free.get('CPU', 0):g} of them free"


def connect(address: str, *, where: str) -> Cluster:
    """The cluster at `address`: `auto`, `local` (one started for this process) or `HOST:PORT`.

    A process has one connection: one that is open already is used. It is closed when the process ends. `where` is the
    key of the config that asks, for messages.

    Raises:
        ConfigError: Ray is not installed, or no cluster answers at the address.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            f"{where}: the package 'ray' is not installed; install it with: python -m pip install 'assay[ray]'"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # an actor without GPUs keeps its environment
    # A cluster that is started here: Ray would run its processes at niceness 15, so that on a busy machine (the trainer
    # is one) an actor needs minutes to start and verdicts come late.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with _CONNECTING:
        import ray

        if not ray.is_initialized():
            if address not in ("auto", "local"):
                _must_listen(address, where)
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            if address == "local":
                quiet["include_dashboard"] = False
            try:
                _stay(lambda: ray.init(address=address, **quiet))
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"{where}: no Ray cluster at {address!r}: {_line(error)}; start one with `ray start --head`, name "
                    "its address as HOST:PORT, or use 'local'"
                ) from error
    return Cluster(ray, address)


def _must_listen(address: str, where: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{where}: a Ray cluster's address is 'auto', 'local' or HOST:PORT; found {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LISTENS_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"{where}: no Ray cluster at {address!r}: {_line(error)}; start one with `ray start --head`, name its "
            "address as HOST:PORT, or use 'local'"
        ) from error


def _stay(act: Callable[[], object]) -> None:
    """Run `act` in a thread that stays for as long as the process.

    Ray lets the kernel end a cluster that it started as soon as the *thread* that started it is gone.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            act()
        except BaseException as error:  # raised again where it was asked for
            done.set_exception(error)
            return
        done.set_result(None)
        threading.Event().wait()

    threading.Thread(target=run, name="assay-ray-cluster", daemon=True).start()
    done.result()


def whenever(reference: Any, act: Callable[[Callable[[], Any]], None]) -> None:
    """Call `act` from a thread of Ray's when a call is answered, with a function that gives the answer or raises."""
    answer: Future[Any] = reference.future()
    answer.add_done_callback(lambda future: act(future.result))


def cause_of(error: BaseException) -> str:
    """One line of why a call to an actor failed."""
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayTaskError):
        return _line(error.cause if isinstance(error.cause, BaseException) else error)
    if isinstance(error, RayActorError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        telling = [line for line in lines if not line.startswith(("class_name", "actor_id", "namespace", "pid", "ip"))]
        return " ".join(telling)[:_CAUSE_CHARACTERS]
    return _line(error)


def is_lost(error: BaseException) -> bool:
    """Whether a call failed without its actor having answered it."""
    from ray.exceptions import RayTaskError

    return not isinstance(error, RayTaskError)


def raised_there(error: BaseException) -> AssayError | None:
    """The error of assay's own that an actor's call raised, or None where it was something else."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, AssayError) else None


def see_the_same_packages(path: Sequence[str]) -> None:
    """In an actor: look for modules also where whoever started it does, as far as these folders exist here."""
    sys.path.extend(entry for entry in path if entry and entry not in sys.path and os.path.exists(entry))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_CAUSE_CHARACTERS]
