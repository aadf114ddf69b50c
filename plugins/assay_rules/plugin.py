"""What this plugin offers. Importing it loads no library beyond assay's own; the rules load theirs when first used."""

from collections.abc import Callable
from typing import Any, TypeVar

from assay.component import BuildContext, Component, Options
from assay.contracts import Isolation, Limits
from assay.hookspecs import hookimpl
from assay.protocols import RewardSource
from assay_rules.choice import Choice, ChoiceOptions
from assay_rules.citation import Citation, CitationOptions
from assay_rules.exact import Exact, ExactOptions
from assay_rules.instructions import InstructionOptions, Instructions
from assay_rules.language import Language, LanguageOptions
from assay_rules.length import Length, LengthOptions, Overlong, OverlongOptions
from assay_rules.numeric import Numeric, NumericOptions
from assay_rules.pattern import PATTERN_LIMITS, Pattern, PatternOptions
from assay_rules.prediction import (
    EditDistance,
    ErrorOptions,
    NegativeMae,
    StateMatch,
    StateOptions,
    TextOptions,
    TokenF1,
)
from assay_rules.python_file import PythonOptions, build_python
from assay_rules.repetition import Repetition, RepetitionOptions
from assay_rules.schema import SCHEMA_LIMITS, Schema, SchemaOptions
from assay_rules.shape import Format, FormatOptions
from assay_rules.source import IN_PLACE_CHARACTERS, Elsewhere, Rule, RuleSource, rule_limits
from assay_rules.tools import ToolCall, ToolOptions

O = TypeVar("O", bound=Options)  # noqa: E741  # the options of one rule


def _rule(
    name: str,
    options: type[O],
    rule: Callable[[O], Rule],
    summary: str,
    *,
    limits: Limits | Callable[[O], Limits] = rule_limits(),  # noqa: B008  # frozen
    isolation: Isolation = "inline",
    blank_abstains: bool = True,
    in_place: int = IN_PLACE_CHARACTERS,
) -> Component[Any, RewardSource]:
    def build(chosen: O, context: BuildContext) -> RewardSource:
        bounds = limits if isinstance(limits, Limits) else limits(chosen)
        elsewhere = None
        if isolation == "inline" and context.workers is not None:
            elsewhere = Elsewhere(context.workers, name, chosen.model_dump_json(), in_place)
        return RuleSource(rule(chosen), bounds, blank_abstains=blank_abstains, elsewhere=elsewhere)

    return Component(name, options, build, summary=summary, isolation=isolation)


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer the rule verifiers."""
    return [
        Component("python", PythonOptions, build_python, "a function f(task, rollout) of a local file"),
        _rule("exact", ExactOptions, Exact, "the answer equals the reference text"),
        _rule("numeric", NumericOptions, Numeric, "the answer is the reference number, within a tolerance"),
        _rule(
            "pattern",
            PatternOptions,
            Pattern,
            "the answer matches a regular expression",
            limits=PATTERN_LIMITS,
            isolation="process",
        ),
        _rule("choice", ChoiceOptions, Choice, "the chosen option is the reference's"),
        _rule("format", FormatOptions, Format, "the response follows a template (think, answer)"),
        _rule("length", LengthOptions, Length, "the response is not too long"),
        _rule(
            "overlong",
            OverlongOptions,
            Overlong,
            "DAPO's soft overlong penalty",
            limits=lambda options: rule_limits(-options.factor, 0.0),
            blank_abstains=False,
        ),
        _rule(
            "repetition",
            RepetitionOptions,
            Repetition,
            "a penalty on repeated n-grams",
            limits=lambda options: rule_limits(-options.max_penalty, 0.0),
        ),
        _rule("language", LanguageOptions, Language, "share of the response in the wanted language"),
        _rule(
            "json-schema",
            SchemaOptions,
            Schema,
            "the answer is JSON that fits a schema",
            limits=SCHEMA_LIMITS,
            isolation="process",
        ),
        _rule("tool-call", ToolOptions, ToolCall, "the calls equal the reference's calls"),
        _rule("instructions", InstructionOptions, Instructions, "IFEval's 25 kinds of checkable instructions"),
        _rule("citation", CitationOptions, Citation, "citations name sources and quotations are verbatim"),
        _rule("state-match", StateOptions, StateMatch, "share of equal leaves of a predicted JSON state"),
        _rule("token-f1", TextOptions, TokenF1, "F1 of the words shared with the reference"),
        _rule(
            "edit-distance",
            TextOptions,
            EditDistance,
            "1 - edit distance / length of the longer text",
            in_place=4096,  # the one rule whose cost is not linear
        ),
        _rule(
            "negative-mae",
            ErrorOptions,
            NegativeMae,
            "minus the mean absolute error of predicted numbers",
            limits=lambda options: rule_limits(-options.max_error, 0.0),
        ),
    ]
