"""The guide's package is built as it stands, installed, and passes its tests and the suite."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli import main

GUIDE = Path(__file__).parents[2] / "examples" / "writing-a-plugin.md"


def test_the_package_of_the_guide_passes_its_own_tests_and_its_check(
    tmp_path: Path, install_project: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
):
    project = tmp_path / "assay-castling"
    files = re.findall(r"^```\w+ (\S+)\n(.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(files) == 4
    for name, text in files:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    install_project(project)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "tests"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert main(["check", "castling"]) == 0
    told = capsys.readouterr().out
    assert "0 failed" in told
    assert "assay-castling 0.1.0" in told
    ruff = ("check", "--isolated", "--select", "E,F,I,W,B", "--line-length", "120", ".")
    style = subprocess.run([sys.executable, "-m", "ruff", *ruff], cwd=project, capture_output=True, check=False)
    assert style.returncode == 0, style.stdout
