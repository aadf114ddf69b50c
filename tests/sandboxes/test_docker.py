"""The docker tier: what is particular to a real engine."""

import asyncio
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
        return [str(each.id) for each in client.containers.list(all=True, filters={"label": label})]
    finally:
        client.close()


def test_containers_are_gone_after_closing_and_a_killed_one_costs_one_retry(open_tier: OpenTier) -> None:
    import docker

    open_tier("docker")  # skips where it does not work
    before = set(_mine())
    sandbox = build_docker(DockerOptions(slots=1), BuildContext())
    client = docker.from_env()

    async def run() -> None:
        running = asyncio.create_task(sandbox.run(Job(source="import time\ntime.sleep(1)\nprint(42)")))
        await asyncio.sleep(0.5)
        (container,) = set(_mine()) - before
        client.containers.get(container).kill()
        assert (await running).stdout == "42\n"
        await sandbox.aclose()

    asyncio.run(run())
    client.close()
    assert set(_mine()) == before


def test_a_sweep_removes_what_a_dead_owner_left(open_tier: OpenTier) -> None:
    import docker

    sandbox = open_tier("docker")
    client = docker.from_env()
    mine = owner()
    image = str(client.containers.get(_mine()[0]).attrs["Image"])
    left = client.containers.create(image, ["true"], labels={LABEL: f"{mine.place}-{mine.pid}-1"})
    other = client.containers.create(image, ["true"], labels={LABEL: f"elsewhere-{mine.pid}-1"})
    assert sweep(client) >= 1
    names = {each.id for each in client.containers.list(all=True)}
    assert left.id not in names
    assert other.id in names
    other.remove(force=True)
    client.close()
    assert asyncio.run(sandbox.run(Job(source="print(42)"))).stdout == "42\n"


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
    before = os.listdir("/proc/self/fd")
    for place in (tmp_path / "nowhere.sock", left):
        monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
        with pytest.raises(SandboxError, match="no engine answers"):
            build_docker(DockerOptions(), BuildContext())
    assert len(os.listdir("/proc/self/fd")) == len(before)
