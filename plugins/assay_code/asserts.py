"""Test code made of Python asserts, taken apart so that no expected value is ever in the candidate's process.

The test code is the task author's and is parsed here; the candidate's program never is. Three ways, best first:

* `direct`: every assert is `f(literals) == literal`: the calls are run, the values compared outside.
* `pair`: anything else that only *calls* the candidate's functions: the tests run in a jail that never sees the
  candidate, and each call is passed to the candidate's jail and its value passed back.
* `shared`: tests that need the candidate's objects themselves (classes, attributes, functions as arguments); they run
  in one process with the candidate and are marked `trust: shared-process`, since such a process can be made to lie.
"""

import ast
import builtins
import sys
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from assay.contracts.tagged import TaggedError, tag
from assay_code.cases import CasesError

Way = Literal["direct", "pair", "shared"]
RECORD = "__assay_check__"
_NAMES = frozenset(dir(builtins)) | {"__name__", "__file__"}
MAX_TEST_BYTES = 4 << 20


@dataclass(frozen=True)
class DirectCase:
    """One assert of the form `f(literals) == literal`."""

    text: str
    call: dict[str, Any]
    """The call, arguments tagged."""
    expected: Any


@dataclass(frozen=True)
class AssertPlan:
    """How test code is run."""

    way: Way
    functions: tuple[str, ...]
    """Names that the tests expect the candidate to define."""
    direct: tuple[DirectCase, ...] = ()
    code: str = ""
    """For `pair` and `shared`: the tests, each assert as a recorded check."""
    texts: tuple[str, ...] = ()
    """The asserts as written, by number."""


def parse(code: str) -> ast.Module:
    """The tree of trusted code; its warnings (an invalid escape) are not ours to give."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def plan(code: str, *, setup: str = "", entry_point: str | None = None) -> AssertPlan:
    """How to run `code`; raises `CasesError` where it is not Python or holds no assert."""
    if len(code) + len(setup) > MAX_TEST_BYTES:
        raise CasesError(f"facts.tests.code: {len(code)} characters of tests; at most {MAX_TEST_BYTES} are read")
    try:
        tree, head = parse(code), parse(setup)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CasesError(f"facts.tests.code: not Python: {error}; correct the task's tests") from None
    asserts = sum(isinstance(node, ast.Assert) for node in ast.walk(tree))
    if not asserts:
        raise CasesError("facts.tests.code: there is no assert in it; correct the task's tests")
    modules = _modules(tree, head)
    functions = tuple(name for name in _functions(tree, head, entry_point) if name not in modules)
    direct = [_direct(node, functions) for node in tree.body]
    found = [case for case in direct if case is not None]
    if len(found) == len(direct) and not setup.strip():
        return AssertPlan("direct", functions, direct=tuple(found))
    recorder = _Recorder()
    recorded = ast.fix_missing_locations(recorder.visit(tree))
    imports = "".join(f"import {name}\n" for name in modules)
    body = f"{imports}{setup}\n{ast.unparse(recorded)}\n"
    needs_objects = _needs_objects(tree, functions) or _needs_objects(head, functions)
    way: Way = "shared" if needs_objects or not functions else "pair"
    return AssertPlan(way, functions, code=body, texts=tuple(recorder.texts))


def _functions(tree: ast.Module, head: ast.Module, entry_point: str | None) -> tuple[str, ...]:
    """Names that are used and defined nowhere in the tests: the candidate's."""
    bound: set[str] = set()
    used: dict[str, None] = {}
    for node in [*ast.walk(head), *ast.walk(tree)]:
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used[name] = None
            case ast.Name(id=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.arg(arg=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case _:
                pass
    free = [name for name in used if name not in bound and name not in _NAMES]
    if not free and not entry_point:
        # A candidate's function may bear a builtin's name; the tests then call nothing else.
        free = list(dict.fromkeys(_called_first(node) for node in tree.body if isinstance(node, ast.Assert)))
        free = [name for name in free if name and name not in bound]
    if entry_point and entry_point not in free and entry_point not in bound:
        free.append(entry_point)
    return tuple(free)


def _called_first(node: ast.Assert) -> str:
    match node.test:
        case ast.Compare(left=ast.Call(func=ast.Name(id=name))):
            return name
        case _:
            return ""


def _modules(tree: ast.Module, head: ast.Module) -> tuple[str, ...]:
    """Modules of the standard library that the tests use without importing them, trusting the candidate to."""
    nodes = [*ast.walk(head), *ast.walk(tree)]
    based = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    imported = {each.asname or each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    other = {node.id for node in names if id(node) not in based}
    found = {node.id for node in names if id(node) in based and node.id in sys.stdlib_module_names}
    return tuple(sorted(found - bound - imported - other))


def _direct(node: ast.stmt, functions: tuple[str, ...]) -> DirectCase | None:
    match node:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            pass
        case _:
            return None
    for call, value in ((left, right), (right, left)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in functions:
            try:
                arguments = [ast.literal_eval(each) for each in call.args]
                named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
                expected = ast.literal_eval(value)
                message = {
                    "fn": call.func.id,
                    "args": [tag(each) for each in arguments],
                    "kwargs": {name: tag(each) for name, each in named.items()},
                }
            except (ValueError, TypeError, SyntaxError, TaggedError, MemoryError, RecursionError):
                return None
            if len(named) != len(call.keywords):
                return None
            return DirectCase(ast.unparse(node), message, expected)
    return None


def _needs_objects(tree: ast.Module, functions: tuple[str, ...]) -> bool:
    """Whether the tests use the candidate's names for anything but calling them and comparing what comes back.

    Passing a name on to a function of the tests (`check(candidate)`) counts as calling it. What looks like a class
    (a capital first) must be compared, or given to a builtin, at once: its instances would not cross the border.
    """
    names = set(functions)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    fine: set[int] = set()
    compared: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            fine.add(id(node.func))
            if isinstance(node.func, ast.Name) and node.func.id in own:
                fine.update(id(each) for each in node.args)
            if isinstance(node.func, ast.Name) and node.func.id in _NAMES:
                compared.update(id(each) for each in node.args)
        if isinstance(node, ast.Compare):
            compared.update(id(each) for each in (node.left, *node.comparators))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load) and id(node) not in fine:
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in names
            and node.func.id[:1].isupper()
            and id(node) not in compared
        ):
            return True
    return False


class _Recorder(ast.NodeTransformer):
    """Turns each assert into a call that records whether it held, and goes on."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        number = len(self.texts)
        self.texts.append(ast.unparse(node.test)[:300])
        if any(isinstance(each, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)) for each in ast.walk(node.test)):
            # A lambda would change what the names mean: check it in place; a failing one ends the tests.
            tested = ast.Call(ast.Name("bool", ast.Load()), [node.test], [])
            arguments: list[ast.expr] = [ast.Constant(number), tested]
        else:
            nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            arguments = [ast.Constant(number), ast.Lambda(nothing, node.test)]
        call = ast.Call(ast.Name(RECORD, ast.Load()), arguments, [])
        return ast.copy_location(ast.Expr(call), node)
