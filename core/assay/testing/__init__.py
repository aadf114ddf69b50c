"""What a plugin's author tests with: suites that run any component by its name, cases, and judging one text."""

from assay.testing.cases import Case, LowerBound, UpperBound, judge_text, read_cases
from assay.testing.endpoint import ScriptedEndpoint, scripted_endpoint
from assay.testing.engine_suite import engine_suite, run_engine_suite
from assay.testing.hostile import hostile_texts
from assay.testing.malformed import MalformedFile, malformed_files
from assay.testing.optimizer_check import optimizer_suite, run_optimizer_suite
from assay.testing.reward_suite import CheckResult, reward_suite, run_reward_suite
from assay.testing.sandbox_suite import run_sandbox_suite, sandbox_suite

SUITES = 1
"""Version of the suites: it rises by one whenever one of them asks for more than before."""

__all__ = [
    "SUITES",
    "Case",
    "CheckResult",
    "LowerBound",
    "MalformedFile",
    "ScriptedEndpoint",
    "UpperBound",
    "engine_suite",
    "hostile_texts",
    "judge_text",
    "malformed_files",
    "optimizer_suite",
    "read_cases",
    "reward_suite",
    "run_engine_suite",
    "run_optimizer_suite",
    "run_reward_suite",
    "run_sandbox_suite",
    "sandbox_suite",
    "scripted_endpoint",
]
