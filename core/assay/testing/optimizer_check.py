"""The conformance suite of an installed optimizer, or of a part of the composition, by its name.

    from assay.testing import optimizer_suite
    test_soft_clip = optimizer_suite("soft_clip", options={"width": 0.3})

A part is checked inside the first installed composition that takes it: a preset with the part's axis replaced. The
checks are those of `assay.testing.optimizer_suite`; a part that changes what is learned must also be tested for that,
by numbers of its own. Needs torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from assay.component import BuildContext
from assay.config.refs import build
from assay.errors import ConfigError, did_you_mean
from assay.protocols import PolicyOptimizer
from assay.registry import Registry
from assay.testing.optimizer_suite import CHECKS, check_nothing_to_learn, check_state
from assay.testing.reward_suite import CheckResult

LISTS = {"shaper": "shaping", "batch_rule": "batch_rules", "regulariser": "regularisers", "sidecar": "sidecars"}
"""Axes of which an optimizer takes several, and the option that lists them; every other axis is an option itself."""
SEEDS = (0, 1)


class Found(NamedTuple):
    """An optimizer to be checked and how its option table reads."""

    use: str
    options: dict[str, Any]
    note: str
    """Where a part was put; empty for an optimizer."""


def part_axes(registry: Registry, name: str) -> list[str]:
    """The axes that have a part of this name."""
    kinds = dict.fromkeys(row.kind for row in registry.rows if row.offer.name == name)
    return [kind.removeprefix("part:") for kind in kinds if kind.startswith("part:")]


def run_optimizer_suite(
    name: str, *, options: Mapping[str, Any] | None = None, registry: Registry | None = None, binary: bool = True
) -> list[CheckResult]:
    """The result of every check of an optimizer, or of a part (`NAME`, or `AXIS:NAME` where several axes have it).

    `binary` says whether the rewards of the suite's batches are 0 and 1 or all different.

    Raises:
        ConfigError: there is no such optimizer or part, an option is wrong, or no optimizer takes the part.
    """
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f"{name}: optimizers are checked with the package 'torch', which is not installed; "
            'install it with: python -m pip install "assay[train]"'
        )
    registry = registry or Registry.load()
    context = BuildContext(parts=registry.parts())
    found = _find(registry, name, dict(options or {}), context)

    def make() -> PolicyOptimizer:
        return build(registry, "policy_optimizer", found.use, found.options, context, where=f"assay check {name}")

    def seeded(check: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            for seed in SEEDS:
                check(make, seed=seed, binary=binary)

        return run

    checks: list[tuple[str, Callable[[], None]]] = [
        (check.__name__.removeprefix("check_").replace("_", " "), seeded(check)) for check in CHECKS
    ]
    checks.append(("nothing to learn", lambda: check_nothing_to_learn(make)))
    checks.append(("state", lambda: check_state(make)))
    return [_result(title, check, found.note) for title, check in checks]


def _result(title: str, check: Callable[[], None], note: str) -> CheckResult:
    try:
        check()
    # An optimizer may fail by raising whatever it raises; that is a failed check with the cause.
    except Exception as error:
        return CheckResult(title, "failed", f"{type(error).__name__}: {error}"[:300])
    return CheckResult(title, "passed", note)


def _find(registry: Registry, name: str, options: dict[str, Any], context: BuildContext) -> Found:
    if name in registry.names("policy_optimizer"):
        return Found(name, options, "")
    axis, _, part = name.rpartition(":")
    axes = [each for each in part_axes(registry, part) if not axis or each == axis]
    if not axes:
        known = registry.names("policy_optimizer") + sorted(key for _, key in context.parts)
        raise ConfigError(f"assay check: no optimizer or part named {name!r}.{did_you_mean(part, known)}")
    if len(axes) > 1:
        raise ConfigError(
            f"assay check: {len(axes)} parts are named {part!r}; write one of: "
            f"{', '.join(f'{each}:{part}' for each in axes)}"
        )
    return _host(registry, axes[0], {"use": part, **options}, context)


def _host(registry: Registry, axis: str, spec: dict[str, Any], context: BuildContext) -> Found:
    """The first installed optimizer that takes the part in its place."""
    causes: list[str] = []
    for use in _taking(registry, LISTS.get(axis, axis)):
        table = {LISTS[axis]: [spec]} if axis in LISTS else {axis: spec}
        try:
            build(registry, "policy_optimizer", use, table, context, where=f"assay check: {use}")
        except ConfigError as error:
            causes.append(str(error))
        else:
            return Found(use, table, f"as the {axis.replace('_', ' ')} of {use}")
    why = f"; {causes[-1]}" if causes else ""
    raise ConfigError(f"assay check: no installed optimizer takes the {axis.replace('_', ' ')} {spec['use']!r}{why}")


def _taking(registry: Registry, option: str) -> Iterator[str]:
    for row in registry.rows:
        if row.kind == "policy_optimizer" and row.state == "ok":
            component = registry.component("policy_optimizer", row.offer.name)
            if option in getattr(component.config, "model_fields", {}):
                yield row.offer.name


def optimizer_suite(name: str, **settings: Any) -> Callable[[], None]:
    """A pytest test that runs the suite of `name`; settings are those of `run_optimizer_suite`."""

    def test_optimizer() -> None:
        results = run_optimizer_suite(name, **settings)
        failed = [f"{result.check}: {result.detail}" for result in results if result.status == "failed"]
        assert not failed, f"{name}: " + "; ".join(failed)

    test_optimizer.__doc__ = f"The conformance suite of the optimizer or part {name!r}."
    return test_optimizer
