"""`assay new`: a plugin package that passes its own tests at once."""

import keyword
import re
import shutil
from pathlib import Path
from string import Template
from typing import Literal

import assay
from assay.cli.output import say
from assay.errors import ConfigError
from assay.registry import WORDS, Registry

Kind = Literal["verifier", "optimizer-part", "sandbox"]
TEMPLATES = Path(__file__).with_name("templates")
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
MAX_CHARACTERS = 60
"""Longest name: files and folders are called by it."""


def new(name: str, /, *, kind: Kind = "verifier") -> int:
    """Write the folder assay-NAME here: a package with one component, its tests and a page.

    Args:
        name: Name of the component, for example chess; small letters, digits, hyphens.
        kind: What it offers: verifier, optimizer-part or sandbox.
    """
    name = name.removeprefix("assay-")
    folder = Path(f"assay-{name.replace('_', '-')}")
    _check(name, folder, Registry.load())
    try:
        written = scaffold(name, kind, folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(f"assay new: {folder}: cannot be written: {error.strerror}; go to another folder") from error
    say(f"wrote {folder}: {', '.join(str(path.relative_to(folder)) for path in written)}")
    option = " --set unsafe=true" if kind == "sandbox" else ""
    say(f"Next: python -m pip install -e {folder}   then   assay check {name}{option}   and   pytest {folder}/tests")
    return 0


def scaffold(name: str, kind: Kind, folder: Path) -> list[Path]:
    """The files of a new package in `folder`, written now."""
    identifier = name.replace("-", "_")
    package = f"assay_{identifier}"
    major, minor = assay.__version__.split(".")[:2]
    words = {
        "name": name,
        "identifier": identifier,
        "class_name": "".join(part.capitalize() for part in identifier.split("_")),
        "package": package,
        "distribution": folder.name,
        "at_least": f"{major}.{minor}",
        "below": str(int(major) + 1),
    }
    written: list[Path] = []
    for source in sorted((TEMPLATES / kind).rglob("*.txt")):
        place = source.relative_to(TEMPLATES / kind).with_suffix("")
        if place.parts[0] == "src":
            place = Path("src", package, *place.parts[1:])
        target = folder / (place.with_name(f"test_{identifier}.py") if place.parts[0] == "tests" else place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(source.read_text("utf-8")).substitute(words), encoding="utf-8")
        written.append(target)
    return written


def _check(name: str, folder: Path, registry: Registry) -> None:
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > MAX_CHARACTERS:
        shown = name if len(name) <= MAX_CHARACTERS else f"{name[:MAX_CHARACTERS]}..."
        raise ConfigError(
            f"assay new: {shown!r} is no name for a component; write small letters and digits, words joined by "
            f"hyphens, at most {MAX_CHARACTERS} characters"
        )
    if folder.exists():
        raise ConfigError(f"assay new: {folder} exists already; choose another name, or remove it first")
    for row in registry.rows:
        if row.offer.name == name:
            word = WORDS.get(row.kind, "optimizer part")
            raise ConfigError(f"assay new: {name!r} is an existing {word} of {row.plugin.title}; choose another name")
    module = f"assay_{name.replace('-', '_')}"
    if any(plugin.module.partition(".")[0] == module for plugin in registry.plugins):
        raise ConfigError(f"assay new: the package {module} is installed already; choose another name")
