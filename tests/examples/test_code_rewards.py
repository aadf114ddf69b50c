"""The example of code rewards: its tasks can be solved and are not given away, and its cheats earn nothing."""

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from assay import BuildContext
from assay.config.load import load_config
from assay_code.plugin import assay_reward_sources
from assay_sandboxes.sandbox import JailedSandbox

FOLDER = Path(__file__).parents[2] / "examples" / "code-rewards"
OpenTier = Callable[..., JailedSandbox]


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Lent:
    """A sandbox that its borrower cannot close."""

    def __init__(self, inner: JailedSandbox) -> None:
        self.guarantees = inner.guarantees
        self.require = inner.require
        self.run = inner.run
        self.run_each = inner.run_each
        self.run_pair = inner.run_pair

    async def aclose(self) -> None:
        return


@pytest.mark.bubblewrap
def test_cheats_fool_the_naive_harness_and_not_the_source(open_tier: OpenTier) -> None:
    sandbox = open_tier("bubblewrap")
    (component,) = assay_reward_sources()

    class Parts:
        def component(self, kind: str, name: str) -> Any:
            return component

    context = BuildContext(open_sandbox=lambda name, options: Lent(sandbox))
    compare: Any = _module("reward_hacking").compare
    rewards = cast("dict[str, tuple[float, float, str]]", asyncio.run(compare(context, Parts())))
    assert rewards.pop("honest")[:2] == (1.0, 1.0)
    assert {name: value for name, (_, value, _) in rewards.items() if value} == {}
    assert sum(simple for simple, _, _ in rewards.values()) >= 6


def test_the_config_is_valid() -> None:
    config = load_config(FOLDER / "code.toml")
    assert config.kind == "rlvr"


def test_the_tasks_do_not_show_their_values() -> None:
    rows: list[dict[str, Any]] = _module("make_tasks").rows()
    assert len({row["id"] for row in rows}) == len(rows) > 50
    for row in rows:
        assert row["tests"]["kind"] == "call"
        assert not any(
            str(case["expect"]) in row["prompt"] for case in row["tests"]["cases"] if abs(case["expect"]) > 9
        )
