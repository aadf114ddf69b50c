"""A reward model of somebody else: an objective and its source, built as a wheel, trained and used."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.registry import Registry

pytestmark = pytest.mark.long

PROJECT = Path(__file__).parents[2] / "examples" / "assay-graded-reward"


def test_the_project_passes_its_own_tests_from_its_wheel(install_project: Callable[[Path], Path]) -> None:
    install_project(PROJECT)
    registry = Registry.load()
    for kind, name in (("objective", "graded"), ("reward_source", "graded-reward")):
        origin = registry.origin(kind, name)
        assert (origin.distribution, origin.builtin) == ("assay-graded-reward", False)
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib", "-c", "/dev/null"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(PROJECT / "tests")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_trainable_reward_model_is_short() -> None:
    files = (PROJECT / "src").rglob("*.py")
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) < 150
