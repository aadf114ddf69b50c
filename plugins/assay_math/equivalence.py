"""Whether an answer equals the gold, in layers from the cheapest proof to none at all.

1. Equal writing. 2. The same structure (list, tuple, set of reals, matrix, relation, quantity, text), part by part.
3. Exact algebra (`algebra`), which decides both ways wherever it has rules. 4. Numbers to 60 digits (`numeric`), which
disprove, and prove identities by agreement. What is left is *unknown* (for the worker) or *costly* (the cost gate).
"different" is only said of two exact sides, or of two values that differ.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from assay_math import algebra, numeric
from assay_math.decimals import agrees, has_long_decimal, same_rounding, terminates, written_decimal
from assay_math.expression import Node, negate
from assay_math.options import MathPolicy
from assay_math.quantities import quantity, reconcile
from assay_math.reading import Answer, text_form
from assay_math.regions import Region, is_region, region

Outcome = Literal["equal", "different", "unknown", "costly", "undefined"]
MAX_ELEMENTS = 200
_NO_SOLUTION = frozenset({"no solution", "no solutions", "no real solution", "no real solutions", "empty set", "empty"})


class Decision(NamedTuple):
    """An outcome, and the rule that it rests on, in one line."""

    outcome: Outcome
    rule: str


def equal(rule: str) -> Decision:
    """Equal, by `rule`."""
    return Decision("equal", rule)


def different(rule: str) -> Decision:
    """Different, by `rule`."""
    return Decision("different", rule)


def compare(gold: Answer, answer: Answer, policy: MathPolicy) -> Decision:
    """Whether `answer` equals `gold`; both must have been read."""
    if policy.equal_strings and _compact(gold.text) == _compact(answer.text):
        return equal("equal writing")
    if gold.node is None or answer.node is None:
        return Decision("unknown", "not read")
    if gold.node.op == "text" or answer.node.op == "text":
        return _texts(gold, answer)
    comparer = Comparer(policy)
    first: Decision | None = None
    for one in _readings(gold, policy, None):
        for two in _readings(answer, policy, one):
            decision = comparer.nodes(one, two)
            if decision.outcome == "equal":
                return decision
            first = first or decision
    assert first is not None
    return first


def _compact(text: str) -> str:
    return text if " " not in text or "\\text" in text else text.replace(" ", "")


def _readings(answer: Answer, policy: MathPolicy, gold: Node | None) -> tuple[Node, ...]:
    """The admissible readings, the natural one first; commas are decimal points only where the policy lets them."""
    assert answer.node is not None
    if answer.decimal is None or policy.decimal_comma == "never":
        return (answer.node, *answer.others)
    if policy.decimal_comma == "always":
        return (answer.decimal,)
    if gold is None:
        # A gold such as `0,6` is a decimal: a list would not begin with a nought and stand without a space.
        starts = answer.text.lstrip("+-")
        return (answer.node, *answer.others, answer.decimal) if starts.startswith("0,") else (answer.node, *answer.others)
    value = _rational(gold)
    fractional = value is not None and value.denominator != 1
    return (answer.node, *answer.others, answer.decimal) if fractional else (answer.node, *answer.others)


def _rational(node: Node) -> Fraction | None:
    try:
        return algebra.form(quantity(node).value).ratio.rational
    except (algebra.TooCostly, algebra.Undefined):
        return None


def _texts(gold: Answer, answer: Answer) -> Decision:
    left, right = text_form(gold.text), text_form(answer.text)
    if left == right and left:
        return equal("equal text")
    assert gold.node is not None
    assert answer.node is not None
    if (gold.node == Node("set") and right in _NO_SOLUTION) or (answer.node == Node("set") and left in _NO_SOLUTION):
        return equal("no solution is the empty set")
    if left in _NO_SOLUTION and right in _NO_SOLUTION:
        return equal("no solution is the empty set")
    parts = [sorted(part.strip() for part in side.replace(" and ", ",").split(",") if part.strip()) for side in (left, right)]
    if len(parts[0]) > 1 and parts[0] == parts[1]:
        return equal("equal words in any order")
    return different("text that differs" if gold.node.op == answer.node.op else "text against mathematics")


class Comparer:
    """Compares trees under one policy."""

    def __init__(self, policy: MathPolicy) -> None:
        self.policy = policy

    # ---- structure --------------------------------------------------------------------------------------------------

    def nodes(self, gold: Node, answer: Node) -> Decision:
        """The decision for two trees of any shape."""
        gold, answer = _expanded(gold), _expanded(answer)
        if gold == answer:
            return equal("the same expression")
        if is_region(gold) or is_region(answer):
            found = self._regions(gold, answer)
            if found is not None:
                return found
        if gold.op == "relation" or answer.op == "relation":
            return self._relations(gold, answer)
        kinds = {gold.op, answer.op}
        if kinds & {"list", "either", "set", "tuple", "bracket"}:
            return self._collections(gold, answer)
        if "matrix" in kinds:
            return self._matrices(gold, answer)
        if kinds & {"range", "union", "such_that", "intersection", "difference", "row"}:
            return self._alike(gold, answer, "a range")
        if "ratio" in kinds and "unit" not in kinds:
            return self._ratios(gold, answer)
        if gold.op == answer.op == "base":
            return self._bases(gold, answer)
        if "text" in kinds:
            same = gold.op == answer.op and text_form(gold.name) == text_form(answer.name)
            return equal("equal text") if same else different("text that differs")
        return self._quantities(gold, answer)

    def _alike(self, gold: Node, answer: Node, what: str) -> Decision:
        if gold.op != answer.op:
            return different(f"{what} is not a single value")
        return self._in_order(gold.args, answer.args)

    def _in_order(self, gold: Sequence[Node], answer: Sequence[Node]) -> Decision:
        if len(gold) != len(answer):
            return different(f"{len(answer)} parts where the gold has {len(gold)}")
        worst: Decision | None = None
        for one, two in zip(gold, answer, strict=True):
            decision = self.nodes(one, two)
            if decision.outcome == "different":
                return decision
            if decision.outcome != "equal":
                worst = decision
        return worst or equal(f"{len(gold)} equal parts in order")

    def _in_any_order(self, gold: Sequence[Node], answer: Sequence[Node]) -> Decision:
        if len(gold) != len(answer):
            return different(f"{len(answer)} answers where the gold has {len(gold)}")
        if len(gold) > MAX_ELEMENTS:
            return Decision("costly", f"a list of more than {MAX_ELEMENTS} answers")
        left = list(answer)
        unknown: Decision | None = None
        for one in gold:
            for place, two in enumerate(left):
                decision = self.nodes(one, two)
                if decision.outcome == "equal":
                    del left[place]
                    break
                if decision.outcome != "different":
                    unknown = decision
            else:
                return unknown or different("an answer of the gold is missing")
        return equal(f"{len(gold)} equal answers in any order")

    def _collections(self, gold: Node, answer: Node) -> Decision:
        plain = ("list", "either", "set")
        if gold.op in plain and (answer.op in plain or (answer.op == "tuple" and gold.op == "list")):
            if gold.op == "list" and answer.op == "either":
                return different("alternatives where the gold lists all answers") if not _labelled_alike(gold, answer) else self._free(gold, answer)
            return self._free(gold, answer)
        if gold.op in ("tuple", "bracket") and answer.op in ("tuple", "bracket", "list"):
            if answer.op != gold.op and "bracket" in (gold.op, answer.op) and gold.name != "[]" and answer.name != "[]":
                return different("brackets that differ")
            if gold.op != answer.op and "bracket" in (gold.op, answer.op) and len(gold.args) == 2:
                return different("brackets that differ")
            if gold.op == answer.op == "bracket" and gold.name != answer.name:
                return different("brackets that differ")
            decision = self._in_order(gold.args, answer.args)
            if self.policy.order == "any" and decision.outcome == "different":
                return self._in_any_order(gold.args, answer.args)
            return decision
        if "matrix" in (gold.op, answer.op) and "tuple" in (gold.op, answer.op):
            return self._matrices(gold, answer)
        if gold.op == "set" and len(gold.args) == 1 and answer.op not in (*plain, "tuple", "bracket"):
            return self.nodes(gold.args[0], answer)
        if answer.op == "set" and len(answer.args) == 1 and gold.op not in (*plain, "tuple", "bracket"):
            return self.nodes(gold, answer.args[0])
        return different(f"{_named(answer)} where the gold is {_named(gold)}")

    def _free(self, gold: Node, answer: Node) -> Decision:
        ordered = self.policy.order == "strict" or (_distinct_labels(gold.args) and not _distinct_labels(answer.args))
        return self._in_order(gold.args, answer.args) if ordered else self._in_any_order(gold.args, answer.args)

    def _matrices(self, gold: Node, answer: Node) -> Decision:
        rows, others = _rows(gold), _rows(answer)
        if rows is None or others is None:
            return different("a matrix against something else")
        if [len(row) for row in rows] != [len(row) for row in others]:
            return different("matrices of different sizes")
        return self._in_order([cell for row in rows for cell in row], [cell for row in others for cell in row])

    def _ratios(self, gold: Node, answer: Node) -> Decision:
        if gold.op == answer.op:
            if len(gold.args) != len(answer.args):
                return different("ratios of different lengths")
            decision = self._in_order(gold.args, answer.args)
            if decision.outcome != "different" or _clock(gold) or _clock(answer):
                return decision
            first = self._in_order(
                [Node("divide", (part, gold.args[-1])) for part in gold.args[:-1]],
                [Node("divide", (part, answer.args[-1])) for part in answer.args[:-1]],
            )
            return first
        ratio, other = (gold, answer) if gold.op == "ratio" else (answer, gold)
        if len(ratio.args) != 2 or _clock(ratio) or other.op != "divide":
            return different("a ratio or time against another value")
        return self._quantities(Node("divide", ratio.args), other)

    @staticmethod
    def _bases(gold: Node, answer: Node) -> Decision:
        (a, _, m), (b, _, n) = gold.name.partition("_"), answer.name.partition("_")
        same = m == n and a.lstrip("0").upper() == b.lstrip("0").upper()
        return equal("the same digits in the same base") if same else different("other digits or another base")

    # ---- sets of reals and relations --------------------------------------------------------------------------------

    def _regions(self, gold: Node, answer: Node) -> Decision | None:
        left, right = region(gold), region(answer)
        if left is None and is_region(gold):
            return None
        if right is None and is_region(answer):
            if left is None:
                return None
            return None if answer.op == "relation" and answer.op == gold.op else different("an interval against something else")
        if left is None or right is None:
            return different("a set of numbers against something else")
        return self._same_region(left, right)

    def _same_region(self, gold: Region, answer: Region) -> Decision:
        if gold.variable and answer.variable and gold.variable != answer.variable:
            return different(f"conditions on {answer.variable} where the gold's are on {gold.variable}")
        if len(gold.segments) != len(answer.segments):
            return different(f"{len(answer.segments)} intervals where the gold has {len(gold.segments)}")
        for one, two in zip(gold.segments, answer.segments, strict=True):
            for a, b in zip(one, two, strict=True):
                if a.closed != b.closed:
                    return different("an end that belongs to one interval and not to the other")
                decision = equal("the same end") if a.node == b.node else self._quantities(a.node, b.node)
                if decision.outcome != "equal":
                    return decision
        return equal("the same set of numbers")

    def _relations(self, gold: Node, answer: Node) -> Decision:
        if gold.op == answer.op:
            return self._two_relations(gold, answer)
        relation, other = (gold, answer) if gold.op == "relation" else (answer, gold)
        values = self.values(relation)
        if not values:
            return different("an equation or condition against a value")
        decisions = [self.nodes(value, other) if relation is gold else self.nodes(other, value) for value in values]
        for decision in decisions:
            if decision.outcome == "equal":
                return decision
        return decisions[-1]

    def values(self, relation: Node) -> tuple[Node, ...]:
        """What a relation says a value is, once short left sides are dropped; empty when it is a real equation."""
        signs = relation.name.split()
        if any(sign not in ("=", "~", "to", "==") for sign in signs):
            return ()
        parts = list(relation.args)
        if len(parts) == 2 and parts[1].op == "name" and parts[0].op in ("number", "negate", "divide", "multiply") and signs == ["="]:
            parts.reverse()
        while len(parts) > 1 and _is_label(parts[0], parts[1:]):
            parts.pop(0)
        if len(parts) == 1:
            return (parts[0],)
        if "~" in signs or "to" in signs:
            near = all(numeric.close(parts[0], part, relative=0.05) for part in parts[1:])
            return tuple(parts) if near else ()
        if all(self.nodes(parts[0], part).outcome == "equal" for part in parts[1:]):
            return (parts[0],)
        return ()

    def _two_relations(self, gold: Node, answer: Node) -> Decision:
        signs, others = gold.name.split(), answer.name.split()
        if signs == others == ["="]:
            if _is_label(gold.args[0], gold.args[1:]) and _is_label(answer.args[0], answer.args[1:]):
                if gold.args[0] == answer.args[0] or "apply" in (gold.args[0].op, answer.args[0].op):
                    return self.nodes(gold.args[1], answer.args[1])
            return self._equations(gold, answer)
        if len(signs) > 1 and set(signs) <= {"="} and set(others) <= {"="}:
            one, two = self.values(gold), self.values(answer)
            if one and two:
                return self.nodes(one[0], two[0])
        if signs == others:
            direct = self._in_order(gold.args, answer.args)
            if direct.outcome == "equal" or len(signs) > 1 or signs[0] not in _MIRRORED:
                return direct
        mirrored = [_MIRRORED.get(sign, "") for sign in reversed(others)]
        if mirrored == signs and len(signs) > 1:
            return self._in_order(gold.args, tuple(reversed(answer.args)))
        if len(signs) == len(others) == 1 and signs[0] in _MIRRORED and others[0] in _MIRRORED:
            return self._inequalities(gold, answer)
        return different("relations with different signs")

    def _equations(self, gold: Node, answer: Node) -> Decision:
        """Equations with the same solutions: one side's difference is a constant multiple of the other's."""
        found = self._proportion(gold, answer)
        if isinstance(found, Decision):
            return found
        return equal("equations that are multiples of each other")

    def _inequalities(self, gold: Node, answer: Node) -> Decision:
        found = self._proportion(gold, answer)
        if isinstance(found, Decision):
            return found
        sign, other = gold.name, answer.name if found > 0 else _MIRRORED[answer.name]
        return equal("the same inequality") if sign == other else different("inequalities with different signs")

    def _proportion(self, gold: Node, answer: Node) -> Fraction | Decision:
        """The constant that the two differences (left minus right) are multiples by, or the decision without one."""
        try:
            one, two = (algebra.form(Node("add", (side.args[0], negate(side.args[1])))) for side in (gold, answer))
        except (algebra.TooCostly, algebra.Undefined) as error:
            return Decision("costly", f"cost gate: {error}")
        if not one.ratio.top or not two.ratio.top:
            return equal("both hold always") if one.ratio.top == two.ratio.top else different("one holds always")
        left, right = one.ratio.top, two.ratio.top
        if "opaque" in one.kinds | two.kinds and set(left) != set(right):
            return Decision("unknown", "equations beyond exact algebra")
        key = min(left)
        if set(left) == set(right):
            factor = left[key] / right[key]
            if all(left[monomial] == factor * right[monomial] for monomial in left):
                return factor
        return self._constant_multiple(one, two)

    @staticmethod
    def _constant_multiple(one: algebra.Form, two: algebra.Form) -> Fraction | Decision:
        """A factor with square roots in it: tested by the ratio of two coefficients of the same variables."""
        sides: list[dict[algebra.Monomial, algebra.Polynomial]] = []
        for side in (one, two):
            table: dict[algebra.Monomial, algebra.Polynomial] = {}
            for monomial, coefficient in side.ratio.top.items():
                outer = tuple(item for item in monomial if item[0].startswith("n:"))
                inner = tuple(item for item in monomial if not item[0].startswith("n:"))
                table.setdefault(outer, {})[inner] = coefficient
            sides.append(table)
        left, right = sides
        if set(left) != set(right) or (len(left) == 1 and () in left):
            return different("equations with different solutions")
        key = min(left)
        unit: algebra.Polynomial = {(): Fraction(1)}
        for monomial in left:
            cross = algebra.subtract(
                algebra.multiply(algebra.Ratio(left[monomial], unit), algebra.Ratio(right[key], unit)),
                algebra.multiply(algebra.Ratio(right[monomial], unit), algebra.Ratio(left[key], unit)),
            )
            if cross.top:
                return different("equations with different solutions")
        return Fraction(1)

    # ---- scalars ----------------------------------------------------------------------------------------------------

    def _quantities(self, gold: Node, answer: Node) -> Decision:
        left, right = quantity(gold), quantity(answer)
        if "ratio" in (left.value.op, right.value.op):
            if left.value.op != right.value.op:
                return different("a ratio or time against another value")
            settled = reconcile(left, right, self.policy.units)
            return different(settled) if isinstance(settled, str) else self._ratios(*settled)
        settled = reconcile(left, right, self.policy.units)
        if isinstance(settled, str):
            return different(settled)
        one, two = settled
        if one.op in ("tuple", "list", "set", "matrix", "bracket") or two.op in ("tuple", "list", "set", "matrix", "bracket"):
            return self._collections(one, two) if "matrix" not in (one.op, two.op) else self._matrices(one, two)
        decision = self.scalars(one, two)
        if decision.outcome == "different" and self.policy.percent == "bare" and left.percent != right.percent:
            bare_one, bare_two = (side.args[0] if side.op == "percent" else side for side in (one, two))
            return self.scalars(bare_one, bare_two)
        return decision

    def scalars(self, gold: Node, answer: Node) -> Decision:
        """The decision for two expressions that stand for one number or one function each."""
        if gold == answer:
            return equal("the same expression")
        try:
            one, two = _form(gold), _form(answer)
            outcome = algebra.compare(one, two)
        except algebra.TooCostly as error:
            disproved = numeric.agree(gold, answer).outcome == "different"
            return different("different values") if disproved else Decision("costly", f"cost gate: {error}")
        except algebra.Undefined as error:
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


_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


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


def _expanded(node: Node) -> Node:
    """`node` with every plus-minus written out as a list of its values."""
    if not any(part.op == "plus_minus" for part in node.walk()):
        return node
    if node.op in ("list", "either", "set"):
        parts: list[Node] = []
        for part in node.args:
            inner = _expanded(part)
            parts.extend(inner.args if inner.op == "list" and part.op != "list" else (inner,))
        return node._replace(args=tuple(parts))
    if node.op == "relation" and len(node.args) == 2 and not any(p.op == "plus_minus" for p in node.args[0].walk()):
        right = _expanded(node.args[1])
        return Node("list", tuple(node._replace(args=(node.args[0], part)) for part in right.args))
    return Node("list", (_signed(node, "+"), _signed(node, "-")))


def _signed(node: Node, sign: str) -> Node:
    args = tuple(_signed(part, sign) for part in node.args)
    if node.op != "plus_minus":
        return node._replace(args=args)
    last = args[-1] if (node.name == "+") == (sign == "+") else negate(args[-1])
    return last if len(args) == 1 else Node("add", (args[0], last))


def _is_label(left: Node, rest: Sequence[Node]) -> bool:
    """Whether a left side only names the value: a variable, `f(x)`, a text, `AB`, `(p,q)`."""
    short = left.op in ("name", "apply", "text", "mark", "constant") and left.name not in ("pi", "infinity")
    if left.op == "multiply" and len(left.args) <= 4:
        short = all(part.op in ("name", "mark", "constant", "apply") or _inverse(part) for part in left.args)
    elif left.op == "absolute":
        short = all(part.op in ("absolute", "multiply", "name", "mark") for part in left.walk())
    elif left.op in ("tuple", "call", "unit") and left.args:
        short = all(part.op in ("name", "text", "mark") for part in left.args)
    if not short:
        return False
    names = {part for part in left.walk() if part.op == "name"}
    if left.op in ("apply", "call", "multiply"):
        return not any(part == left for side in rest for part in side.walk())
    return not any(part in names for side in rest for part in side.walk())


def _inverse(node: Node) -> bool:
    return node.op == "power" and node.args[0].op == "name" and node.args[1].op in ("number", "negate")


def _labels(nodes: Sequence[Node]) -> list[Node]:
    return [node.args[0] for node in nodes if node.op == "relation" and node.name == "=" and _is_label(node.args[0], node.args[1:])]


def _distinct_labels(nodes: Sequence[Node]) -> bool:
    labels = _labels(nodes)
    return len(labels) == len(nodes) > 1 and len(set(labels)) == len(labels)


def _labelled_alike(gold: Node, answer: Node) -> bool:
    """Whether alternatives are the solutions of one unknown (`x = 1 or x = 2`), or the gold's own number of values."""
    return len(gold.args) == len(answer.args)


def _clock(node: Node) -> bool:
    """Whether `a:b` may be a time of day: the last part has two digits."""
    last = node.args[-1]
    return last.op == "number" and 10 <= last.number <= 59 and node.args[0].op == "number" and 0 <= node.args[0].number <= 24


def _rows(node: Node) -> list[tuple[Node, ...]] | None:
    if node.op == "matrix":
        return [row.args for row in node.args]
    if node.op == "tuple":
        return [(part,) for part in node.args]
    return None


def _named(node: Node) -> str:
    names = {"list": "a list", "either": "alternatives", "set": "a set", "tuple": "a tuple", "bracket": "a bracket", "matrix": "a matrix"}
    return names.get(node.op, "a single value")
