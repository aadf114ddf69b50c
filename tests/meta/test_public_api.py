"""The public names and hooks; a change here needs a line in CHANGELOG.md."""

import inspect

import assay
from assay import hookspecs
from assay.hooks import COMPONENT_HOOKS, OBSERVER_HOOKS, PART_HOOK

PUBLIC = """
AssayError BuildContext Candidate Component ConfigError EngineError Evidence Judgement JudgingError Limits Message
Objective Options Part PluginError PolicyOptimizer Reward RewardSource Rollout RolloutEngine Run Sandbox SandboxError
Span Step
StepScore StoreError Task TaskSource Tracker TrainingError Turn Verdict __version__ ascore atrain hookimpl load_config
open_run score train verifier
"""

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
