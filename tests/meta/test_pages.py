"""Pages say what the code says."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from assay import hookspecs

ROOT = Path(__file__).parents[2]


def test_the_hook_table_has_every_hook_with_its_arguments():
    rows = re.findall(
        r"^\| `(assay_\w+)` \| ([^|]+) \|", (ROOT / "core" / "README.md").read_text("utf-8"), re.MULTILINE
    )
    table: dict[str, list[str]] = {
        name: [] if arguments.strip() == "-" else arguments.strip().split(", ") for name, arguments in rows
    }
    hooks = {
        name: list(inspect.signature(function).parameters)
        for name, function in inspect.getmembers(hookspecs, inspect.isfunction)
        if name.startswith("assay_")
    }
    assert table == hooks


def test_the_layer_table_has_every_layer():
    table = (ROOT / "core" / "README.md").read_text("utf-8").partition("## Layers")[2].partition("\n## ")[0]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (layers,) = [item for item in settings["tool"]["importlinter"]["contracts"] if item["type"] == "layers"]
    names = [name for line in layers["layers"] for name in line.split(" | ") if not name.startswith("_")]
    assert not [name for name in names if f"`{name}`" not in table]


@pytest.mark.parametrize("folder", ["plugins", "examples"])
def test_the_table_of_a_folder_has_everything_in_it(folder: str):
    page = (ROOT / folder / "README.md").read_text("utf-8")
    inside = [path.name for path in (ROOT / folder).iterdir() if path.is_dir() or path.suffix == ".md"]
    missing = [name for name in inside if name not in ("README.md", "__pycache__") and f"]({name}" not in page]
    assert not missing, f"{folder}/README.md does not name {missing}"


def test_every_promise_names_tests_and_scripts_that_exist():
    page = (ROOT / "examples" / "reliability.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 15
    for row in rows:
        _, _, tests, scripts = row.removeprefix("|").removesuffix("|").split("|")
        names = re.findall(r"`([\w/]+\.py)`", tests)
        assert names, row
        for name in names:
            assert "def test_" in (ROOT / "tests" / name).read_text("utf-8"), name
        for name in re.findall(r"`([\w/]+\.py)`", scripts):
            assert (ROOT / "tests" / "benchmarks" / name).is_file(), name


def test_every_command_is_described_in_its_module():
    from assay.cli import COMMANDS

    for name, command in COMMANDS.items():
        module, _, function = command.target.partition(":")
        path = ROOT / "core" / (module.replace(".", "/") + ".py")
        assert path.is_file(), f"command {name!r} has no module"
        assert f"def {function}(" in path.read_text("utf-8")


def test_no_file_of_the_core_names_a_first_party_package_in_code():
    for path in (ROOT / "core").rglob("*.py"):
        named = re.findall(r"\bassay_(?:code|engines|judge|math|optim|prms|rules|tasks)\b", path.read_text("utf-8"))
        assert not named, f"{path}: {named}"
