"""Fixtures that several folders of tests share."""

import asyncio
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from assay.component import BuildContext
from assay.errors import SandboxError
from assay.process import descendants
from assay_sandboxes import assay_sandboxes
from assay_sandboxes.sandbox import JailedSandbox

if TYPE_CHECKING:
    from assay.training.model import PolicyModel

ROOT = Path(__file__).parents[1]
# The same examples on every machine, and no deadline: a busy machine is no defect.
hypothesis.settings.register_profile("assay", deadline=None, derandomize=True)
hypothesis.settings.load_profile("assay")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of the specification's case files, beside the checkout; skips where it is absent."""
    folder = Path(__file__).parents[1].parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"the specification's folder {folder.name!r} is not beside the checkout")
    return folder


@pytest.fixture(scope="session")
def shake() -> "Callable[[PolicyModel, int], None]":
    """A function that draws other weights: fresh ones are nearly uniform, these make log-probs that a mistake shows in.

    It takes a policy and a seed.
    """
    import torch  # most tests do without

    def draw(policy: "PolicyModel", seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)

    return draw


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory, shake: "Callable[[PolicyModel, int], None]") -> "PolicyModel":
    """A tiny policy with shaken weights, whose folder holds them, tied embeddings and all."""
    from assay.training.model import load_policy
    from assay.training.tiny import make_tiny_model
    from assay.training.weights import save_policy

    folder = make_tiny_model(tmp_path_factory.mktemp("policy") / "model", seed=3, hidden_size=64)
    policy = load_policy(str(folder))
    shake(policy, 0)
    save_policy(policy, folder)
    return policy


@pytest.fixture
def processes_left() -> Callable[..., set[int]]:
    """A function that returns the processes below this one that were not there when the test began.

    One that was killed may take a moment to be gone: it looks again for up to `wait_s` seconds while there are any.
    """
    before = set(descendants(os.getpid()))

    def left(wait_s: float = 30.0) -> set[int]:
        deadline = time.monotonic() + wait_s
        while (found := set(descendants(os.getpid())) - before) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    return left


@pytest.fixture(scope="session")
def open_tier() -> Iterator[Callable[..., JailedSandbox]]:
    """A function that opens a sandbox tier by name and options once and keeps it, or skips where its probe fails."""
    opened: dict[str, JailedSandbox] = {}

    def get(name: str, **options: Any) -> JailedSandbox:
        key = f"{name} {sorted(options.items())}"
        if key not in opened:
            component = {each.name: each for each in assay_sandboxes()}[name]
            try:
                sandbox = component.build(component.config(**options), BuildContext())
            except SandboxError as error:
                pytest.skip(f"the sandbox {name!r} does not work here: {error}")
            assert isinstance(sandbox, JailedSandbox)
            opened[key] = sandbox
        return opened[key]

    yield get
    for sandbox in opened.values():
        asyncio.run(sandbox.aclose())


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a distribution with one plugin module on the path of this process and of its children: name and code."""
    site = _site(tmp_path, monkeypatch)

    def put(name: str, code: str) -> None:
        (site / f"p_{name}.py").write_text(code, encoding="utf-8")
        info = site / f"third_{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: third-{name}\nVersion: 1.2\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[assay.plugins]\n{name} = p_{name}\n", encoding="utf-8")

    return put


@pytest.fixture
def install_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Builds a project's wheel, as anybody would, and puts it on the path of this process and of its children."""
    site = _site(tmp_path, monkeypatch)

    def put(project: Path) -> Path:
        out = tmp_path / "wheels" / project.name
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(project)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (wheel,) = out.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        return site

    return put


@pytest.fixture
def install_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install_project: Callable[[Path], Path]
) -> Callable[[str, str, str], Path]:
    """Turns a built-in plugin into an outsider: folder, package and entry point to the project of its copy.

    The package is copied as `outside_...`, built as a wheel of its own distribution and put on the path of this
    process's children; there assay's own entry point is gone and importing the original raises. What the children
    then find under the old component names is the copy, which came in by the door that everybody has.
    """

    def put(folder: str, package: str, entry: str) -> Path:
        copy = package.replace("assay_", "outside_")
        project = tmp_path / copy
        target = project / "src" / copy
        shutil.copytree(ROOT / folder / package, target, ignore=shutil.ignore_patterns("__pycache__"))
        for path in target.rglob("*.py"):
            path.write_text(re.sub(rf"\b{package}\b", copy, path.read_text("utf-8")), encoding="utf-8")
        (project / "pyproject.toml").write_text(OUTSIDE.format(name=copy, entry=entry), encoding="utf-8")
        site = install_project(project)
        blocked = site / package
        blocked.mkdir()
        reason = f"{package} is disabled here: only its copy {copy} may be used"
        (blocked / "__init__.py").write_text(f"raise ImportError({reason!r})\n", encoding="utf-8")
        _assay_without(entry, site)
        return project

    return put


OUTSIDE = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "9.9.9"
dependencies = ["assay"]
[project.entry-points."assay.plugins"]
{entry} = "{name}"
[tool.hatch.build.targets.wheel]
packages = ["src/{name}"]
"""


def _assay_without(entry: str, site: Path) -> None:
    """Metadata of the installed assay in front of its own, without one entry point."""
    assay = importlib.metadata.distribution("assay")
    info = site / f"assay-{assay.version}.dist-info"
    info.mkdir(exist_ok=True)
    old = info / "entry_points.txt"
    points = old.read_text("utf-8") if old.is_file() else assay.read_text("entry_points.txt") or ""
    kept = [line for line in points.splitlines() if line.partition("=")[0].strip() != entry]
    assert len(kept) == len(points.splitlines()) - 1, f"assay has no entry point {entry!r}"
    old.write_text("\n".join(kept), encoding="utf-8")
    (info / "METADATA").write_text(assay.read_text("METADATA") or "", encoding="utf-8")


def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages in front of the path of this process and of its children, and a fresh cache."""
    site = tmp_path / "site"
    if not site.is_dir():
        site.mkdir()
        monkeypatch.setattr(sys, "path", [str(site), *sys.path])
        monkeypatch.setenv("PYTHONPATH", str(site))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("ASSAY_PLUGINS", raising=False)
    return site
