"""`assay check`: the conformance suite of one component."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

from cyclopts import Parameter

from assay.cli.output import emit, note, say, table
from assay.config.load import override
from assay.discovery import default_cache_dir
from assay.errors import ConfigError, did_you_mean
from assay.registry import Registry
from assay.reports.page import Page, Section, section_rows, write_page
from assay.testing import SUITES, CheckResult, run_optimizer_suite, run_reward_suite
from assay.testing.optimizer_check import part_axes
from assay.testing.sandbox_suite import run_sandbox_suite


def check(
    name: str,
    /,
    *,
    cases: Path | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=False)] = (),
    sandbox: str | None = None,
    other_process: Annotated[bool, Parameter(negative="--no-other-process")] = True,
    report: Path | None = None,
    junit: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Run the conformance suite of a reward source, a sandbox, an optimizer or an optimizer's part.

    Args:
        name: The component; AXIS:PART where several axes have a part of that name;
            FILE.py:FUNCTION is a function of a local file, which needs --cases.
        cases: JSONL file of cases; default `cases/NAME.jsonl` or `cases.jsonl` of the plugin's package.
        set_: An option of the component, KEY=VALUE; may be repeated.
        sandbox: The sandbox in which a source that runs programs runs them; as --set sandbox=NAME.
        other_process: Also compare with another process that has another hash seed.
        report: Where the page goes; default `checks/NAME.html` in assay's cache folder.
        junit: Write the result as JUnit XML.
        json_: One JSON object per check on stdout.
    """
    registry = Registry.load()
    options: dict[str, Any] = {}
    for text in set_:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected KEY=VALUE")
        override(options, key, value)
    if sandbox is not None:
        options["sandbox"] = sandbox
    if ".py:" in name:
        name, options["path"] = "python", name
    kind = _kind(registry, name)
    origin = registry.origin(kind, name.rpartition(":")[2] if kind.startswith("part:") else name)
    if kind == "sandbox":
        results = run_sandbox_suite(name, options=options)
    elif kind == "policy_optimizer" or kind.startswith("part:"):
        results = run_optimizer_suite(name, options=options, registry=registry)
    else:
        results = run_reward_suite(name, cases=cases, options=options, registry=registry, other_process=other_process)
    failed = [result for result in results if result.status == "failed"]
    if json_:
        for result in results:
            emit(result._asdict())
    else:
        say(f"{name} from {origin.distribution} {origin.version}, suites version {SUITES}")
        table(["check", "result", "detail"], results)
        passed = sum(result.status == "passed" for result in results)
        say(f"{passed} passed, {len(failed)} failed, {len(results) - passed - len(failed)} skipped")
    section = Section("checks", ("check", "result", "detail"), section_rows(results), good=not failed)
    facts = {"source": name, "package": origin.distribution, "version": origin.version}
    page = report or default_cache_dir() / "checks" / f"{name.replace(':', '.')}.html"
    note(f"wrote {write_page(Page(f'assay check {name}', (section,), facts), page)}")
    if junit is not None:
        junit.write_bytes(junit_xml(name, results))
        note(f"wrote {junit}")
    return 3 if failed else 0


def _kind(registry: Registry, name: str) -> str:
    for kind in ("reward_source", "sandbox", "policy_optimizer"):
        if name in registry.names(kind):
            return kind
    axis, _, part = name.rpartition(":")
    axes = part_axes(registry, part)
    if axis in axes or (axes and not axis):
        return f"part:{axis or axes[0]}"
    known = [*registry.names("reward_source"), *registry.names("sandbox")]
    optimizers = [*registry.names("policy_optimizer"), *(part for _, part in registry.parts())]
    raise ConfigError(
        f"assay check: no reward source, sandbox, optimizer or part named {name!r}; installed: {', '.join(known)} "
        f"and optimizers.{did_you_mean(name, [*known, *optimizers])}"
    )


def junit_xml(name: str, results: Sequence[CheckResult]) -> bytes:
    """The results as a JUnit test suite."""
    suite = ElementTree.Element("testsuite", name=f"assay check {name}", tests=str(len(results)))
    suite.set("failures", str(sum(result.status == "failed" for result in results)))
    suite.set("skipped", str(sum(result.status == "skipped" for result in results)))
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=result.check)
        if result.status != "passed":
            tag = "failure" if result.status == "failed" else "skipped"
            # XML 1.0 cannot hold control characters; JSON's escapes can.
            ElementTree.SubElement(case, tag, message=json.dumps(result.detail)[1:-1])
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
