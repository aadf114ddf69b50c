"""The docker tier: what is particular to a real engine."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.component import BuildContext
from assay.contracts.sandbox import Job
from assay.errors import SandboxError
from assay_sandboxes.docker import LABEL, sweep
from assay_sandboxes.home import owner
from assay_sandboxes.options import DockerOptions
from assay_sandboxes.plugin import build_docker
from assay_sandboxes.sandbox import JailedSandbox

# The engine's client has no types of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

OpenTier = Callable[..., JailedSandbox]
pytestmark = pytest.mark.docker


def _mine() -> list[str]:
    import docker

    mine = owner()
    client = docker.from_env()
    try:
        label = f"{LABEL}={mine.place}-{mine.pid}-{mine.started}"
        return [
            str(each.id) for each in client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
        ]
    finally:
        client.close()


def test_containers_are_gone_after_closing_and_a_killed_one_costs_one_retry(open_tier: OpenTier) -> None:
    import docker

    open_tier("docker")  # skips where it does not work
    before = set(_mine())
    sandbox = build_docker(DockerOptions(slots=1), BuildContext())
    assert isinstance(sandbox, JailedSandbox)
    client = docker.from_env()

    async def run() -> None:
        (name,) = set(_mine()) - before
        container = client.containers.get(name)
        idle = len(container.top()["Processes"])
        running = asyncio.create_task(sandbox.run(Job(source="import time\ntime.sleep(5)\nprint(42)")))
        async with asyncio.timeout(60):
            while len(container.top()["Processes"]) == idle:  # noqa: ASYNC110 - the engine tells of no event here
                await asyncio.sleep(0.01)
        container.kill()
        assert (await running).stdout == "42\n"
        assert sandbox._candidates[0].slot.starts == 2  # pyright: ignore[reportPrivateUsage]
        await sandbox.aclose()

    asyncio.run(run())
    client.close()
    assert set(_mine()) == before


def test_a_sweep_removes_what_a_dead_owner_left(open_tier: OpenTier) -> None:
    import docker
    from docker import errors

    sandbox = open_tier("docker")
    client = docker.from_env()
    mine = owner()
    image = str(client.containers.get(_mine()[0]).attrs["Image"])
    left = client.containers.create(image, ["true"], labels={LABEL: f"{mine.place}-{mine.pid}-1"})
    other = client.containers.create(image, ["true"], labels={LABEL: f"elsewhere-{mine.pid}-1"})
    sweep(client)  # another process of this machine may have been first
    with pytest.raises(errors.NotFound):
        client.containers.get(str(left.id))
    client.containers.get(str(other.id)).remove(force=True)
    client.close()
    assert asyncio.run(sandbox.run(Job(source="print(42)"))).stdout == "42\n"


def test_a_sweep_passes_over_a_container_that_goes_while_it_looks(
    open_tier: OpenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    import docker
    from docker import errors
    from docker.models.containers import ContainerCollection

    open_tier("docker")
    client = docker.from_env()
    image = str(client.containers.get(_mine()[0]).attrs["Image"])
    other = client.containers.create(image, ["true"], labels={LABEL: "elsewhere-1-1"})
    look = ContainerCollection.get

    def late(self: ContainerCollection, name: str) -> object:
        if name == other.id:
            other.remove(force=True)
        return look(self, name)

    monkeypatch.setattr(ContainerCollection, "get", late)
    sweep(client)
    with pytest.raises(errors.NotFound):
        client.api.inspect_container(str(other.id))
    client.close()


def test_a_missing_image_is_one_sentence(open_tier: OpenTier) -> None:
    open_tier("docker")
    with pytest.raises(SandboxError, match="the engine has no image 'nothing-of-this-name'; pull or build it first"):
        build_docker(DockerOptions(image="nothing-of-this-name"), BuildContext())


def test_a_named_image_is_used(open_tier: OpenTier) -> None:
    import docker

    open_tier("docker")
    client = docker.from_env()
    image = str(client.containers.get(_mine()[0]).attrs["Image"])
    client.close()
    sandbox = build_docker(DockerOptions(image=image, slots=1), BuildContext())
    assert asyncio.run(sandbox.run(Job(source="print(42)"))).stdout == "42\n"
    asyncio.run(sandbox.aclose())


def test_an_engine_that_does_not_answer_is_one_sentence_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as gone:  # the file outlives its engine
        gone.bind(str(left))
    before = _sockets()
    for place in (tmp_path / "nowhere.sock", left):
        monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
        with pytest.raises(SandboxError, match="no engine answers"):
            build_docker(DockerOptions(), BuildContext())
    assert _sockets() <= before


def _sockets() -> set[str]:
    """Those that this process has open."""
    found: set[str] = set()
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # as the one that listed them is
            found.add(os.readlink(f"/proc/self/fd/{each}"))
    return {name for name in found if name.startswith("socket:")}
