"""`assay new`: what it writes is built as a wheel, installed, and passes its own tests, pyright and `assay check`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli import main

pytestmark = pytest.mark.long

BIN = Path(sys.executable).parent
KINDS = {"verifier": "", "optimizer-part": "", "sandbox": "unsafe=true"}
"""Kind to the option that `assay check` needs."""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_passes_its_tests_and_its_check_at_once(
    kind: str, here: Path, install_project: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
):
    name = f"brand-new-{kind}"
    assert main(["new", name, "--kind", kind]) == 0
    assert f"python -m pip install -e assay-{name}   then   assay check {name}" in capsys.readouterr().out
    install_project(here / f"assay-{name}")
    tests = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=here / f"assay-{name}")
    assert " passed" in tests
    assert main(["check", name, *(["--set", KINDS[kind]] if KINDS[kind] else [])]) == 0
    assert "0 failed" in capsys.readouterr().out
    assert main(["plugins"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(name)]
    assert f"assay-{name}" in line
    assert " ok " in line


def test_new_packages_are_clean_to_pyright_and_ruff(
    here: Path, install_project: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
):
    for kind in KINDS:
        assert main(["new", kind.replace("-", ""), "--kind", kind]) == 0
        install_project(here / f"assay-{kind.replace('-', '')}")
    projects = sorted(path.name for path in here.glob("assay-*"))
    assert len(projects) == len(KINDS)
    settings = {"include": projects, "typeCheckingMode": "strict"}
    (here / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    # Editors find the packages that are installed; here they are on PYTHONPATH, which pyright asks Python for.
    assert os.environ["PYTHONPATH"]
    assert "0 errors, 0 warnings" in run(BIN / "pyright", "--pythonpath", sys.executable, "-p", ".", cwd=here)
    run(BIN / "ruff", "check", "--isolated", "--select", "E,F,I,W,B", "--line-length", "120",
        *projects, cwd=here)  # fmt: skip
    run(BIN / "ruff", "format", "--isolated", "--check", "--line-length", "120", *projects, cwd=here)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Chess"], "'Chess' is no name for a component; write small letters and digits"),
        (["../chess"], "is no name for a component"),
        (["lambda"], "is no name for a component"),
        (["a" * 300], "joined by hyphens, at most 60 characters"),
        (["math"], "'math' is an existing reward source of assay"),
        (["clip", "--kind", "optimizer-part"], "'clip' is an existing optimizer part of assay"),
        (["rules"], "the package assay_rules is installed already"),
        (["there"], "assay-there exists already; choose another name"),
        (["chess", "--kind", "verifer"], 'Did you mean "verifier"?'),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    arguments: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
):
    (here / "assay-there").mkdir()
    assert main(["new", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(here.iterdir()) == [here / "assay-there"]


def test_a_folder_that_cannot_be_written_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir("/proc")  # where nobody may make a folder
    assert main(["new", "chess"]) == 2
    assert "assay new: assay-chess: cannot be written: " in capsys.readouterr().err
