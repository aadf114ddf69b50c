"""Fixtures that several folders of tests share."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from assay.component import BuildContext
from assay.errors import SandboxError
from assay.process import descendants
from assay_sandboxes import assay_sandboxes
from assay_sandboxes.sandbox import JailedSandbox

# The same examples on every machine, and no deadline: a busy machine is no defect.
hypothesis.settings.register_profile("assay", deadline=None, derandomize=True)
hypothesis.settings.load_profile("assay")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of the specification's case files, beside the checkout; skips where it is absent."""
    folder = Path(__file__).parents[1].parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"the specification's folder {folder.name!r} is not beside the checkout")
    return folder


@pytest.fixture
def processes_left() -> Callable[[], set[int]]:
    """A function that returns the processes below this one that were not there when the test began."""
    before = set(descendants(os.getpid()))
    return lambda: set(descendants(os.getpid())) - before


@pytest.fixture(scope="session")
def open_tier() -> Iterator[Callable[..., JailedSandbox]]:
    """A function that opens a sandbox tier by name and options once and keeps it, or skips where its probe fails."""
    opened: dict[str, JailedSandbox] = {}

    def get(name: str, **options: Any) -> JailedSandbox:
        key = f"{name} {sorted(options.items())}"
        if key not in opened:
            component = {each.name: each for each in assay_sandboxes()}[name]
            try:
                sandbox = component.build(component.config(**options), BuildContext())
            except SandboxError as error:
                pytest.skip(f"the sandbox {name!r} does not work here: {error}")
            assert isinstance(sandbox, JailedSandbox)
            opened[key] = sandbox
        return opened[key]

    yield get
    for sandbox in opened.values():
        asyncio.run(sandbox.aclose())
