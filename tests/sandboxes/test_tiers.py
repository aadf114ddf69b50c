"""Every tier through the conformance suite, and the suite against a sandbox that only claims."""

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import pytest

from assay.component import BuildContext
from assay.contracts.sandbox import Guarantee
from assay.errors import SandboxError
from assay.testing.sandbox_suite import GUARANTEES, run_sandbox_suite
from assay_sandboxes import assay_sandboxes
from assay_sandboxes.options import SubprocessOptions
from assay_sandboxes.plugin import build_subprocess
from assay_sandboxes.sandbox import JailedSandbox

OpenTier = Callable[..., JailedSandbox]

TIERS: list[Any] = [
    pytest.param("bubblewrap", {}, marks=pytest.mark.bubblewrap, id="bubblewrap"),
    pytest.param(
        "bubblewrap",
        {"namespaces_per_job": False},
        marks=[pytest.mark.bubblewrap, pytest.mark.slow],
        id="bubblewrap-jail-namespaces",
    ),
    pytest.param("docker", {}, marks=pytest.mark.docker, id="docker"),
    pytest.param("landlock", {}, id="landlock"),
    pytest.param("subprocess", {"unsafe": True}, id="subprocess"),
]


@pytest.mark.parametrize(("name", "options"), TIERS)
def test_a_tier_proves_what_it_declares(name: str, options: dict[str, Any], open_tier: OpenTier) -> None:
    open_tier(name, **options)  # skips where it does not work
    component = {each.name: each for each in assay_sandboxes()}[name]
    results = run_sandbox_suite(name, component=component, options=options)
    assert [f"{each.check}: {each.detail}" for each in results if each.status == "failed"] == []
    declared = open_tier(name, **options).guarantees
    assert {each.check for each in results if each.status == "passed"} >= declared


@pytest.mark.parametrize("guarantee", ["no_network", "private_files", "other_user"])
def test_the_suite_would_fail_a_tier_that_only_claims(guarantee: Guarantee, open_tier: OpenTier) -> None:
    sandbox = open_tier("subprocess", unsafe=True)
    assert guarantee not in sandbox.guarantees
    assert asyncio.run(_checked(guarantee, sandbox)) != []


async def _checked(guarantee: Guarantee, sandbox: JailedSandbox) -> list[str]:
    return await GUARANTEES[guarantee](sandbox)


def test_every_missing_guarantee_has_a_reason(open_tier: OpenTier) -> None:
    for name, options in (("landlock", {}), ("subprocess", {"unsafe": True})):
        sandbox = open_tier(name, **options)
        assert set(sandbox.gaps) == set(get_args(Guarantee)) - sandbox.guarantees
        assert all(sandbox.gaps.values())


def test_subprocess_refuses_without_the_word() -> None:
    with pytest.raises(SandboxError, match="unsafe = true"):
        build_subprocess(SubprocessOptions(), BuildContext())
