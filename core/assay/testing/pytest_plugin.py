"""Fixtures for a plugin author's own tests; pytest loads them wherever assay is installed."""

from collections.abc import Callable
from typing import Any

import pytest

from assay.contracts import Verdict
from assay.registry import Registry
from assay.testing.cases import judge_text


@pytest.fixture(scope="session")
def assay_registry() -> Registry:
    """The components of everything that is installed."""
    return Registry.load()


@pytest.fixture
def assay_verdict(assay_registry: Registry) -> Callable[..., Verdict]:
    """`assay_verdict("name", "text", reference=...)`: the verdict of an installed source on one text.

    Further arguments are those of `assay.testing.judge_text`.
    """

    def judge(name: str, text: str, **settings: Any) -> Verdict:
        return judge_text(assay_registry.component("reward_source", name), text, **settings)

    return judge
