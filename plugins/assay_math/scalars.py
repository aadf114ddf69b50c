"""Two expressions that stand for one number or one function each."""

from fractions import Fraction
from functools import lru_cache

from assay_math import algebra, numeric
from assay_math.decimals import agrees, has_long_decimal, same_rounding, terminates, written_decimal
from assay_math.decisions import Decision, different, equal
from assay_math.expression import Node
from assay_math.options import MathPolicy
from assay_math.polynomials import TooCostlyError, UndefinedError


class ScalarComparer:
    """Exact algebra first, then declared tolerances and decimals, then numbers."""

    def __init__(self, policy: MathPolicy) -> None:
        """A comparer under `policy`."""
        self.policy = policy

    def scalars(self, gold: Node, answer: Node) -> Decision:
        """The decision for two expressions that stand for one number or one function each."""
        if gold == answer:
            return equal("the same expression")
        try:
            one, two = _form(gold), _form(answer)
            outcome = algebra.compare(one, two)
        except TooCostlyError as error:
            disproved = numeric.agree(gold, answer).outcome == "different"
            return different("different values") if disproved else Decision("costly", f"cost gate: {error}")
        except UndefinedError as error:
            return Decision("undefined", str(error))
        if outcome == "equal":
            return equal("equal by exact algebra")
        if outcome == "costly":
            return Decision("costly", "cost gate: a power or factorial that is not written out")
        constant = not any(name.startswith(("n:", "mark:")) for form in (one, two) for name in form.generators)
        if constant:
            rounded = self._rounded(gold, answer, one.ratio.rational, two.ratio.rational)
            if rounded is not None:
                return rounded
        if outcome == "different":
            return different("different by exact algebra")
        return self._by_numbers(gold, answer)

    @staticmethod
    def _by_numbers(gold: Node, answer: Node) -> Decision:
        ops = {node.op for side in (gold, answer) for node in side.walk()}
        if ops & {"text", "list", "tuple", "relation", "matrix", "set", "unit", "either", "ratio", "bracket"}:
            return Decision("undefined", "words or structure inside an expression")
        if "deep" in ops:
            named = [node.name for side in (gold, answer) for node in side.walk() if node.op == "deep"]
            outcome = "costly" if "double factorial" in named else "unknown"
            return Decision(outcome, "beyond the exact layers")
        found = numeric.agree(gold, answer)
        if found.outcome == "different":
            return different(f"different values at point {found.points}")
        if found.outcome == "equal" and not _piecewise(gold, answer):
            return equal(f"equal to 45 digits at {found.points} point{'s' * (found.points > 1)}")
        return Decision("costly", "no value could be computed at enough points")

    def _rounded(self, gold: Node, answer: Node, one: Fraction | None, two: Fraction | None) -> Decision | None:
        """Equality of two constants that are not exactly equal: a declared tolerance, or enough decimal digits."""
        policy = self.policy
        if policy.absolute_tolerance is not None or policy.relative_tolerance is not None:
            relative, absolute = policy.relative_tolerance or 0.0, policy.absolute_tolerance or 0.0
            if one is not None and two is not None:
                if abs(one - two) <= max(Fraction(absolute), Fraction(relative) * abs(one)):
                    return equal("within the declared tolerance")
            elif numeric.close(gold, answer, relative=relative, absolute=absolute):
                return equal("within the declared tolerance")
        left, right = written_decimal(gold), written_decimal(answer)
        digits = policy.decimal_digits
        if left is not None and right is not None:
            noisy = max(left.digits, right.digits) >= 14 and abs(left.value - right.value) * 10**12 <= abs(left.value)
            if noisy or same_rounding(left, right, digits=digits):
                return equal(f"decimals that agree to {digits} digits or more")
            return None
        for decimal, exact, node in ((right, one, gold), (left, two, answer)):
            if decimal is not None and agrees(decimal, exact, node, digits=digits):
                return equal(f"a decimal that agrees to {digits} digits")
        if left is None and right is None and (has_long_decimal(gold, digits) or has_long_decimal(answer, digits)):
            if one is not None and two is not None and terminates(one) and terminates(two):
                return None
            if numeric.close(gold, answer, relative=10.0**-digits):
                return equal(f"decimals inside that agree to {digits} digits")
        return None


@lru_cache(maxsize=8_192)
def _form(node: Node) -> algebra.Form:
    return algebra.form(node)


def _piecewise(*nodes: Node) -> bool:
    """Whether steps or corners in a variable could hide a difference between the points."""
    return any(
        part.op in ("floor", "ceil") and any(inner.op == "name" for inner in part.walk())
        for side in nodes
        for part in side.walk()
    )
