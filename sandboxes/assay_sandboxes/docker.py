"""Jails that are containers of a Docker engine: one container for each slot, with the zygote as its process 1.

Nothing is mounted from the host and nothing is fetched: the zygote's program travels on the command line, and the image
is made from the Python that runs assay, unless one is named.
"""

import base64
import contextlib
import itertools
import json
import os
import select
import socket
import time
import zlib
from typing import TYPE_CHECKING, Any, ClassVar

from assay.contracts.sandbox import Guarantee
from assay.errors import SandboxError
from assay_sandboxes.home import Home, Owner, owner, zygote_modules
from assay_sandboxes.interpreter import ENVIRONMENT, FLAGS
from assay_sandboxes.options import DockerOptions

if TYPE_CHECKING:
    import docker

# The engine's client has no types of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

LABEL = "assay.sandbox"
GUARANTEES: frozenset[Guarantee] = frozenset(
    {"no_network", "private_files", "memory_limit", "disk_limit", "cpu_limit", "kills_tree", "other_user"}
)
BOOT = """
import base64, json, sys, types, zlib
for name, text in json.loads(zlib.decompress(base64.b85decode(sys.argv.pop()))).items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__, module.__file__ = [], "/assay/" + name.replace(".", "/") + ".py"
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    exec(compile(text, module.__file__, "exec"), module.__dict__)
module.main()
"""
"""Makes the zygote's modules out of the last argument, and starts it."""
ENGINE_TIMEOUT_S = 60
REMOVED_WITHIN_S = 30.0
START_ONE = "start dockerd, or set DOCKER_HOST to a running one"
FIRST_UID = 64500
_numbers = itertools.count()


class Docker:
    """Starts jails as containers."""

    name = "docker"
    guarantees = GUARANTEES
    gaps: ClassVar[dict[Guarantee, str]] = {}
    start_within_s = 60.0

    def __init__(self, options: DockerOptions, _home: Home) -> None:
        """Reach the engine, remove containers of dead owners, and have an image; raises `SandboxError`."""
        try:
            import docker
            from docker import errors as docker_errors
        except ImportError:
            raise SandboxError("sandbox 'docker': the package docker is missing; pip install 'assay[docker]'") from None
        place = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        if place.startswith("unix://"):
            _knock(place)
        self._options = options
        self._bundle = _bundle()
        try:
            self._client = docker.from_env(timeout=ENGINE_TIMEOUT_S)
            self._client.ping()
        except docker_errors.DockerException as error:
            raise SandboxError(f"sandbox 'docker': no engine answers: {error}; {START_ONE}") from error
        sweep(self._client)
        if options.image is None:
            from assay_sandboxes.image import ensure

            self._image, self._python = ensure(self._client)
        else:
            self._image, self._python = options.image, "python3"
            try:
                self._client.images.get(options.image)
            except docker_errors.ImageNotFound:
                raise SandboxError(
                    f"sandbox 'docker': the engine has no image {options.image!r}; pull or build it first"
                ) from None

    def start(self, *, trusted: bool) -> "ContainerTransport":
        """Start one container."""
        options = self._options
        uid = FIRST_UID + (os.getpid() * 7 + next(_numbers)) % 400
        size = max(options.disk_mib, options.build_disk_mib) << 20
        mine = owner()
        command = [self._python, *FLAGS, "-c", BOOT, json.dumps(self._settings()), self._bundle]
        from docker import errors as docker_errors
        from docker.types import LogConfig

        try:
            container = self._client.containers.create(
                self._image,
                entrypoint=command[:1],
                command=command[1:],
                network_mode="none",
                read_only=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                pids_limit=options.pids,
                mem_limit=options.memory_mib << 20,
                memswap_limit=options.memory_mib << 20,
                ipc_mode="none",
                user=f"{uid}:{uid}",
                tmpfs={"/work": f"size={size},nr_inodes=4096,mode=0700,uid={uid},gid={uid},exec"},
                working_dir="/work",
                environment=ENVIRONMENT,
                labels={LABEL: f"{mine.place}-{mine.pid}-{mine.started}"},
                hostname="jail",
                stdin_open=True,
                auto_remove=True,
                log_config=LogConfig(type="none"),
            )
            return ContainerTransport(container)
        except docker_errors.DockerException as error:
            raise SandboxError(f"sandbox 'docker': a container cannot be started: {error}") from error

    def close(self) -> None:
        """Let go of the engine."""
        self._client.close()

    def _settings(self) -> dict[str, Any]:
        return {
            "import_from": list(self._options.import_from),
            "work": "/work",
            "namespaces": False,
            "alone": True,
            "seccomp": True,
            "shared_files": False,
            "landlock": False,
            "readable": [],
            "preload": list(self._options.preload),
        }


class ContainerTransport:
    """The attached streams of one container; the engine ends the zygote's input when this side goes away."""

    def __init__(self, container: Any) -> None:
        """Attach to a created `container` and start it."""
        self._container = container
        self._closed = False
        self._said = b""
        self._raw = bytearray()
        self._out = bytearray()
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._wrapper = container.attach_socket(params=params)
        self._socket: socket.socket = getattr(self._wrapper, "_sock", self._wrapper)
        self._socket.setblocking(False)
        container.start()

    def fileno(self) -> int:
        """The descriptor of the attached connection."""
        return self._socket.fileno()

    def read(self, timeout_s: float) -> bytes:
        """Some bytes of the zygote's output; what it writes to its standard error is put aside."""
        deadline = time.monotonic() + timeout_s
        while not self._out:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(max(0.0, (deadline - time.monotonic()) * 1000)):
                raise TimeoutError
            if not self._receive():
                return b""
        data = bytes(self._out)
        self._out.clear()
        return data

    def _receive(self) -> bool:
        """Take what is there apart into streams; False at the end."""
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._raw += data
        while len(self._raw) >= 8:
            length = int.from_bytes(self._raw[4:8], "big")
            if len(self._raw) < 8 + length:
                break
            body = bytes(self._raw[8 : 8 + length])
            if self._raw[0] == 1:
                self._out += body
            else:
                self._said = (self._said + body)[-600:]
            del self._raw[: 8 + length]
        return True

    def write(self, data: bytes, timeout_s: float) -> None:
        """Write all of `data`, taking in output meanwhile."""
        deadline = time.monotonic() + timeout_s
        view = memoryview(data)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        while view:
            with contextlib.suppress(BlockingIOError):
                view = view[self._socket.send(view) :]
                continue
            events = dict(poll.poll(max(0.0, (deadline - time.monotonic()) * 1000)))
            if not events:
                raise TimeoutError("its connection stayed full")
            if events.get(self._socket.fileno(), 0) & select.POLLIN and not self._receive():
                raise BrokenPipeError("it closed its output")

    def diagnosis(self) -> str:
        """The last lines of the zygote's standard error."""
        return " ".join(self._said.decode("utf-8", "replace").split())

    def kill(self) -> None:
        """End the container."""
        from docker import errors as docker_errors

        # It may have ended and removed itself already.
        with contextlib.suppress(docker_errors.NotFound, docker_errors.APIError):
            self._container.kill()

    def close(self) -> None:
        """Remove the container and close the connection."""
        if self._closed:
            return
        self._closed = True
        _remove(self._container)
        # The client keeps the answer that the connection came with alive through the wrapper.
        for each in (getattr(self._wrapper, "_response", None), self._wrapper, self._socket):
            with contextlib.suppress(OSError, ValueError):  # the one before may have closed it too
                if each is not None:
                    each.close()


def sweep(client: "docker.DockerClient") -> int:
    """Number of containers removed whose owner no longer runs; those of other machines are left alone."""
    removed = 0
    for container in client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
        place, _, numbers = str(container.labels.get(LABEL, "")).partition("-")
        pid, _, started = numbers.partition("-")
        if pid.isdigit() and started.isdigit() and Owner(place, int(pid), int(started)).is_gone:
            _remove(container)
            removed += 1
    return removed


def _remove(container: Any) -> None:
    """Remove a container and wait until the engine has none of it any more."""
    from docker import errors as docker_errors

    deadline = time.monotonic() + REMOVED_WITHIN_S
    while time.monotonic() < deadline:
        try:
            container.remove(force=True, v=True)
        except docker_errors.NotFound:
            return
        except docker_errors.APIError:
            # Its own removal, at its end, is under way.
            time.sleep(0.02)


def _knock(place: str) -> None:
    """Raise `SandboxError` where nobody listens; the client leaves a socket open when it fails to connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(place.removeprefix("unix://"))
        except OSError as error:
            raise SandboxError(f"sandbox 'docker': no engine answers at {place}: {error}; {START_ONE}") from error


def _bundle() -> str:
    modules = {name: text for name, text in zygote_modules().items() if not name.endswith(".launch")}
    return base64.b85encode(zlib.compress(json.dumps(modules).encode(), 9)).decode()
