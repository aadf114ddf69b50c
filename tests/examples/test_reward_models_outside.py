"""The reward models have no door of their own: their copy, an outsider's wheel, passes the suites of the original."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.registry import Registry

pytestmark = pytest.mark.long

SUITES = Path(__file__).parents[1] / "prms"
QUICK = ("test_formats.py", "test_source.py", "test_scoring.py")
NAMES = (
    ("objective", "step"),
    ("objective", "implicit_ce"),
    ("reward_source", "reward-model"),
    ("reward_source", "prime"),
)


@pytest.fixture
def outside(tmp_path: Path, install_outside: Callable[[str, str, str], Path]) -> Path:
    install_outside("prms", "assay_prms", "prms")
    return tmp_path


def passed(folder: Path, files: list[Path]) -> int:
    """How many tests of the renamed files pass; none may fail."""
    (folder / "suites").mkdir()
    for file in [SUITES / "conftest.py", *files]:
        text = re.sub(r"\bassay_prms\b", "outside_prms", file.read_text("utf-8"))
        (folder / "suites" / file.name).write_text(text, encoding="utf-8")
    root = (SUITES.parent / "conftest.py").read_text("utf-8")
    shared = re.search(r"@pytest.fixture\(scope=\"session\"\)\ndef shared.*?\n\n\n", root, re.DOTALL)
    assert shared is not None
    folder_of = f"Path({str(SUITES.parents[1].parent / 'shared')!r})"
    fixture = re.sub(r"folder = .*", f"folder = {folder_of}", shared[0])
    with (folder / "suites" / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write("\n\n" + fixture)
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", os.devnull, str(folder / "suites")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    return int(found[1])


def test_the_reward_models_come_from_outside_and_pass_their_suites(outside: Path) -> None:
    registry = Registry.load()
    for kind, name in NAMES:
        origin = registry.origin(kind, name)
        assert (origin.distribution, origin.version, origin.builtin) == ("outside_prms", "9.9.9", False)
    assert not registry.problems
    gone = subprocess.run([sys.executable, "-c", "import assay_prms"], capture_output=True, text=True, check=False)
    assert "assay_prms is disabled here" in gone.stderr
    assert passed(outside, [SUITES / name for name in QUICK]) > 90


@pytest.mark.slow
def test_every_suite_passes_outside(outside: Path) -> None:
    assert passed(outside, sorted(SUITES.glob("test_*.py"))) > 150
