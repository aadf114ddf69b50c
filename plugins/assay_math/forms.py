"""The forms that an answer may be written in: what the task allows, and what is no answer at all."""

import math
import re

from assay_math.expression import Node
from assay_math.normalise import normalise
from assay_math.options import Form, MathPolicy
from assay_math.quantities import quantity
from assay_math.reading import Answer

_ASKS = re.compile(
    r"\b(?:simplify|expand|factor(?:ise|ize)?|evaluate|compute|calculate|find|determine|rewrite|express|solve|"
    r"what is)\b",
    re.IGNORECASE,
)
_OPERATION = re.compile(r"[-+*/^]|\\(?:frac|sqrt|cdot|times|binom)|!")
_FRACTION = re.compile(r"[-+]?(?:\\frac\{?(\d{1,40}?)\}?\{?(\d{1,40})\}?|(\d{1,40})/(\d{1,40}))")


def is_unevaluated(node: Node | None) -> bool:
    """Whether an integral, a sum, a product or a limit stands in `node` as such."""
    return node is not None and any(part.op == "deep" and part.name.startswith("\\") for part in node.walk())


def is_echo(gold: Answer, answer: Answer, prompt: str) -> bool:
    """Whether `answer` only repeats an expression that the question asks to work out.

    It must stand in the question as written, contain an operation, and be written otherwise than the gold. A fraction
    in lowest terms is no echo where the gold is one too: questions name such numbers, and they are answers.
    """
    text, right = answer.text.replace(" ", ""), gold.text.replace(" ", "")
    if len(text) < 3 or not prompt or text == right or not _OPERATION.search(text.lstrip("+-")):
        return False
    if answer.node == gold.node or (_in_lowest_terms(text) and _in_lowest_terms(right)):
        return False
    if answer.node is not None and answer.node.op == "negate" and answer.node.args[0].op == "number":
        return False
    return _ASKS.search(prompt) is not None and text in normalise(prompt).replace(" ", "")


def _in_lowest_terms(text: str) -> bool:
    """Whether `text` is a fraction of two integers that nothing is left to do with."""
    fraction = _FRACTION.fullmatch(text)
    return fraction is not None and math.gcd(*(int(part) for part in fraction.groups() if part)) == 1


def allowed(node: Node, policy: MathPolicy) -> str:
    """Why the answer may not be written like this, or an empty string when it may."""
    if policy.answers is not None:
        count = len(node.args) if node.op in ("list", "either", "set") else 1
        if count != policy.answers:
            return f"{count} answers where the task asks for {policy.answers}"
    if policy.forms and not any(_is_form(node, form) for form in policy.forms):
        return f"not written as the task asks: {' or '.join(policy.forms)}"
    return ""


def _is_form(node: Node, form: Form) -> bool:
    if node.op == "relation" and len(node.args) == 2:
        node = node.args[1]
    value = quantity(node).value
    if form == "percent":
        return value.op == "percent"
    while value.op == "negate" or (value.op == "multiply" and len(value.args) == 2 and value.args[0].number == 1):
        value = value.args[-1]
    if form == "integer":
        return value.op == "number" and not value.name
    if form == "decimal":
        return value.op == "number" and bool(value.name)
    if form == "mixed":
        return value.op == "mixed"
    if form == "scientific":
        return value.op == "multiply" and len(value.args) == 2 and value.args[1].op == "power"
    whole = [part for part in value.args if part.op in ("number", "negate")]
    if value.op != "divide" or len(whole) != 2:
        return form == "lowest_terms" and value.op == "number" and not value.name
    if form == "fraction":
        return True
    top, bottom = (part.number or (part.args[0].number if part.args else part.number) for part in whole)
    return top.denominator == bottom.denominator == 1 and math.gcd(int(top), int(bottom)) == 1
