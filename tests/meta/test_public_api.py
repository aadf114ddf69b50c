"""The public names and hooks; a change here needs a line in CHANGELOG.md."""

import inspect
import re
from pathlib import Path

from _pytest.fixtures import FixtureFunctionDefinition

import assay
from assay import hookspecs, testing
from assay.hooks import COMPONENT_HOOKS, OBSERVER_HOOKS, PART_HOOK
from assay.testing import pytest_plugin

PUBLIC = """
AssayError BuildContext Candidate Component ConfigError EngineError Evidence Judgement JudgingError Limits Message
Objective Options Part PluginError PolicyOptimizer Reward RewardSource Rollout RolloutEngine Run Sandbox SandboxError
Span Step StepScore StoreError Task TaskSource Tracker TrainingError Turn Verdict __version__ arerank ascore atrain
hookimpl load_config open_run rerank score train verifier
"""

TESTING = """
Case CheckResult LowerBound MalformedFile SUITES ScriptedEndpoint UpperBound engine_suite hostile_texts judge_text
malformed_files optimizer_suite read_cases reward_suite run_engine_suite run_optimizer_suite run_reward_suite
run_sandbox_suite sandbox_suite scripted_endpoint
"""
"""What a third party's tests may import; a name that goes or changes needs a line in CHANGELOG.md."""
FIXTURES = {"assay_registry", "assay_verdict"}

HOOKS = {
    "assay_reward_sources": [],
    "assay_policy_optimizers": [],
    "assay_optimizer_parts": [],
    "assay_objectives": [],
    "assay_rollout_engines": [],
    "assay_sandboxes": [],
    "assay_task_sources": [],
    "assay_trackers": [],
    "assay_commands": ["commands"],
    "assay_run_started": ["run"],
    "assay_judged": ["candidate", "judgement"],
    "assay_updated": ["update"],
    "assay_run_finished": ["run", "outcome"],
}


def test_the_public_names_are_these():
    assert sorted(assay.__all__) == sorted(PUBLIC.split())
    for name in assay.__all__:
        assert getattr(assay, name) is not None


def test_the_names_of_the_testing_package_are_these():
    assert sorted(testing.__all__) == sorted(TESTING.split())
    fixtures = {name for name, value in vars(pytest_plugin).items() if isinstance(value, FixtureFunctionDefinition)}
    assert fixtures == FIXTURES


def test_the_testing_page_names_everything_and_every_check():
    page = Path(testing.__file__).with_name("README.md").read_text("utf-8")
    tables = "".join(line for line in page.splitlines(keepends=True) if line.startswith("|"))
    for name in (*testing.__all__, *FIXTURES):
        assert f"`{name}`" in tables, name
    checks = [result.check for result in testing.run_reward_suite("exact", other_process=False, huge=1000)]
    section = page.partition("## What the reward suite asks")[2]
    assert re.findall(r"^\| ([a-z ]+) \|", section, re.MULTILINE)[1:] == checks
    assert f"today {testing.SUITES}:" in page


def test_the_hooks_and_their_arguments_are_these():
    found = {
        name: list(inspect.signature(function).parameters)
        for name, function in inspect.getmembers(hookspecs, inspect.isfunction)
        if name.startswith("assay_")
    }
    assert found == HOOKS


def test_every_hook_is_documented_and_has_a_caller():
    called = {*COMPONENT_HOOKS.values(), PART_HOOK, *OBSERVER_HOOKS, "assay_commands"}
    assert called == set(HOOKS)
    for name in HOOKS:
        assert inspect.getdoc(getattr(hookspecs, name))


def test_every_public_name_has_a_docstring():
    for name in assay.__all__:
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(assay, name)), name
