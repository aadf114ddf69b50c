"""Whether an answer equals the gold, in layers from the cheapest proof to none at all.

1. Equal writing. 2. The same structure (list, tuple, set of reals, matrix, relation, quantity, text), part by part.
3. Exact algebra (`algebra`), which decides both ways wherever it has rules. 4. Numbers to 60 digits (`numeric`), which
disprove, and prove identities by agreement. What is left is *unknown* (for the worker) or *costly* (the cost gate).
"different" is only said of two exact sides, or of two values that differ.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from assay_math import algebra
from assay_math.decimals import rounds
from assay_math.decisions import Decision, different, equal
from assay_math.equations import MIRRORED, proportion
from assay_math.expression import Node
from assay_math.labels import distinct_labels, expanded, is_label
from assay_math.matrices import rows_of, written_out
from assay_math.options import MathPolicy
from assay_math.polynomials import TooCostlyError, UndefinedError
from assay_math.quantities import quantity, reconcile
from assay_math.reading import Answer, text_form
from assay_math.regions import Region, complement, is_region, region
from assay_math.scalars import ScalarComparer

MAX_ELEMENTS = 200
_IDLE_SPACE = re.compile(r"(?<!\w)(?<!\d,) +| +(?!\w)|(?<=,) +(?!\d)")
_ALL_REALS = frozenset({"all real numbers", "all reals", "real numbers", "all real"})
_NO_SOLUTION = frozenset({"no solution", "no solutions", "no real solution", "no real solutions", "empty set", "empty"})


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
    """`text` without the spaces that part nothing: `5 1/2` and `1, 234` keep theirs."""
    return text if " " not in text or "\\text" in text else _IDLE_SPACE.sub("", text)


def _readings(answer: Answer, policy: MathPolicy, gold: Node | None) -> tuple[Node, ...]:
    """The admissible readings, the natural one first; commas are decimal points only where the policy lets them."""
    assert answer.node is not None
    plain = (answer.node, *answer.others, *answer.lists)
    if answer.decimal is None or policy.decimal_comma == "never":
        return plain
    if policy.decimal_comma == "always":
        return (answer.decimal,)
    if gold is None:
        # A gold such as `0,6` is a decimal: a list would not begin with a nought and stand without a space.
        return (*plain, answer.decimal) if answer.text.lstrip("+-").startswith("0,") else plain
    value = _rational(gold)
    return (*plain, answer.decimal) if value is not None and value.denominator != 1 else plain


def _rational(node: Node) -> Fraction | None:
    try:
        return algebra.form(quantity(node).value).ratio.rational
    except (TooCostlyError, UndefinedError):
        return None


def _texts(gold: Answer, answer: Answer) -> Decision:
    left, right = text_form(gold.text), text_form(answer.text)
    if left == right and left:
        return equal("equal text")
    assert gold.node is not None
    assert answer.node is not None
    if (gold.node == Node("set") and right in _NO_SOLUTION) or (answer.node == Node("set") and left in _NO_SOLUTION):
        return equal("no solution is the empty set")
    if any(_is_everything(one, two.node) for one, two in ((left, answer), (right, gold))):
        return equal("all real numbers")
    if left in _NO_SOLUTION and right in _NO_SOLUTION:
        return equal("no solution is the empty set")
    parts = [
        sorted(part.strip() for part in side.replace(" and ", ",").split(",") if part.strip()) for side in (left, right)
    ]
    if len(parts[0]) > 1 and parts[0] == parts[1]:
        return equal("equal words in any order")
    return different("text that differs" if gold.node.op == answer.node.op else "text against mathematics")


def _is_everything(text: str, node: Node | None) -> bool:
    """Whether words for all real numbers stand against the whole line."""
    found = region(node) if node is not None and text in _ALL_REALS else None
    return found is not None and not complement(found.segments)


class Comparer(ScalarComparer):
    """Compares trees of any shape under one policy."""

    def nodes(self, gold: Node, answer: Node) -> Decision:
        """The decision for two trees of any shape."""
        gold, answer = written_out(expanded(gold)), written_out(expanded(answer))
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
        if gold.op == "ratio" and answer.op == "range" and len(answer.args) == 2:
            return self._ratios(gold, answer._replace(op="ratio"))  # `2 to 3`
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
                return (
                    different("alternatives where the gold lists all answers")
                    if not _labelled_alike(gold, answer)
                    else self._free(gold, answer)
                )
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
        if answer.op == "either" and all(self.nodes(gold, part).outcome == "equal" for part in answer.args):
            return equal("every alternative is the same answer")
        if gold.op == "set" and len(gold.args) == 1 and answer.op not in (*plain, "tuple", "bracket"):
            return self.nodes(gold.args[0], answer)
        if answer.op == "set" and len(answer.args) == 1 and gold.op not in (*plain, "tuple", "bracket"):
            return self.nodes(gold, answer.args[0])
        return different(f"{_named(answer)} where the gold is {_named(gold)}")

    def _free(self, gold: Node, answer: Node) -> Decision:
        ordered = self.policy.order == "strict" or (distinct_labels(gold.args) and not distinct_labels(answer.args))
        return self._in_order(gold.args, answer.args) if ordered else self._in_any_order(gold.args, answer.args)

    def _matrices(self, gold: Node, answer: Node) -> Decision:
        rows, others = rows_of(gold), rows_of(answer)
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

    def _regions(self, gold: Node, answer: Node) -> Decision | None:
        left, right = region(gold), region(answer)
        if left is None and is_region(gold):
            return None
        if right is None and is_region(answer):
            if left is None:
                return None
            return (
                None
                if answer.op == "relation" and answer.op == gold.op
                else different("an interval against something else")
            )
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
        if (
            len(parts) == 2
            and parts[1].op == "name"
            and parts[0].op in ("number", "negate", "divide", "multiply")
            and signs == ["="]
        ):
            parts.reverse()
        while len(parts) > 1 and is_label(parts[0], parts[1:]):
            parts.pop(0)
        if len(parts) == 1:
            return (parts[0],)
        if "~" in signs or "to" in signs:
            return tuple(parts) if len(parts) == 2 and rounds(parts[0], parts[1]) else ()
        if all(self.nodes(parts[0], part).outcome == "equal" for part in parts[1:]):
            return (parts[0],)
        return ()

    def _two_relations(self, gold: Node, answer: Node) -> Decision:
        signs, others = gold.name.split(), answer.name.split()
        if signs == others == ["="]:
            if _same_label(gold, answer):
                return self.nodes(gold.args[1], answer.args[1])
            return self._equations(gold, answer)
        if len(signs) > 1 and set(signs) <= {"="} and set(others) <= {"="}:
            one, two = self.values(gold), self.values(answer)
            if one and two:
                return self.nodes(one[0], two[0])
        if signs == others:
            direct = self._in_order(gold.args, answer.args)
            if direct.outcome == "equal" or len(signs) > 1 or signs[0] not in MIRRORED:
                return direct
        mirrored = [MIRRORED.get(sign, "") for sign in reversed(others)]
        if mirrored == signs and len(signs) > 1:
            return self._in_order(gold.args, tuple(reversed(answer.args)))
        if len(signs) == len(others) == 1 and signs[0] in MIRRORED and others[0] in MIRRORED:
            return self._inequalities(gold, answer)
        return different("relations with different signs")

    def _equations(self, gold: Node, answer: Node) -> Decision:
        """Equations with the same solutions: one side's difference is a constant multiple of the other's."""
        found = proportion(gold, answer)
        if isinstance(found, Decision):
            return found
        return equal("equations that are multiples of each other")

    def _inequalities(self, gold: Node, answer: Node) -> Decision:
        found = proportion(gold, answer)
        if isinstance(found, Decision):
            return found
        sign, other = gold.name, answer.name if found > 0 else MIRRORED[answer.name]
        return equal("the same inequality") if sign == other else different("inequalities with different signs")

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
        if one.op in ("tuple", "list", "set", "matrix", "bracket") or two.op in (
            "tuple",
            "list",
            "set",
            "matrix",
            "bracket",
        ):
            return self._collections(one, two) if "matrix" not in (one.op, two.op) else self._matrices(one, two)
        decision = self.scalars(one, two)
        if decision.outcome == "different" and self.policy.percent == "bare" and left.percent != right.percent:
            bare_one, bare_two = (side.args[0] if side.op == "percent" else side for side in (one, two))
            return self.scalars(bare_one, bare_two)
        return decision


def _same_label(gold: Node, answer: Node) -> bool:
    """Whether two equations name the same value on their left sides (`f(x)` may stand for `y`)."""
    if not all(is_label(side.args[0], side.args[1:]) for side in (gold, answer)):
        return False
    return gold.args[0] == answer.args[0] or "apply" in (gold.args[0].op, answer.args[0].op)


def _labelled_alike(gold: Node, answer: Node) -> bool:
    """Whether alternatives are the solutions of one unknown (`x = 1 or x = 2`), or the gold's own number of values."""
    return len(gold.args) == len(answer.args)


def _clock(node: Node) -> bool:
    """Whether `a:b` may be a time of day: the last part has two digits."""
    last = node.args[-1]
    return (
        last.op == "number"
        and 10 <= last.number <= 59
        and node.args[0].op == "number"
        and 0 <= node.args[0].number <= 24
    )


def _named(node: Node) -> str:
    names = {
        "list": "a list",
        "either": "alternatives",
        "set": "a set",
        "tuple": "a tuple",
        "bracket": "a bracket",
        "matrix": "a matrix",
    }
    return names.get(node.op, "a single value")
