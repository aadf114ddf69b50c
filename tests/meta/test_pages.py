"""Pages say what the code says."""

import inspect
import re
from pathlib import Path

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
