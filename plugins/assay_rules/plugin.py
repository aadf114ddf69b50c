"""What this plugin offers; each build function imports only what it builds."""

from typing import Any

from assay.component import BuildContext, Component
from assay.hookspecs import hookimpl
from assay.protocols import RewardSource
from assay_rules.exact import Exact, ExactOptions
from assay_rules.length import Length, LengthOptions, Overlong, OverlongOptions
from assay_rules.python_file import PythonOptions, build_python
from assay_rules.shape import Format, FormatOptions
from assay_rules.source import RuleSource, rule_limits


def _exact(options: ExactOptions, _context: BuildContext) -> RewardSource:
    return RuleSource(Exact(options), rule_limits())


def _format(options: FormatOptions, _context: BuildContext) -> RewardSource:
    return RuleSource(Format(options), rule_limits())


def _length(options: LengthOptions, _context: BuildContext) -> RewardSource:
    return RuleSource(Length(options), rule_limits())


def _overlong(options: OverlongOptions, _context: BuildContext) -> RewardSource:
    return RuleSource(Overlong(options), rule_limits(-options.factor, 0.0), blank_abstains=False)


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer the rule verifiers."""
    return [
        Component("python", PythonOptions, build_python, "a function f(task, rollout) of a local file"),
        Component("exact", ExactOptions, _exact, "the answer equals the reference text", isolation="inline"),
        Component("format", FormatOptions, _format, "the response follows a template", isolation="inline"),
        Component("length", LengthOptions, _length, "the response is not too long", isolation="inline"),
        Component("overlong", OverlongOptions, _overlong, "DAPO's soft overlong penalty", isolation="inline"),
    ]
