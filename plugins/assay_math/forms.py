"""The forms that a task allows its answer to be written in, and how many answers it asks for."""

import math

from assay_math.expression import Node
from assay_math.options import Form, MathPolicy
from assay_math.quantities import quantity


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
