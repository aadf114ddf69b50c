"""The wheel, and two plugins of a third party beside it in a fresh environment."""

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels of assay and of the two sample plugins, built as anybody would."""
    out = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "examples" / "assay-haiku", ROOT / "examples" / "assay-broken"):
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source)
    return {path.name.partition("-")[0]: path for path in out.glob("*.whl")}


def test_the_lock_file_names_versions_and_no_file_of_the_machine_that_wrote_it():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    wrong = [line for line in lines if line and not line.startswith("#") and "==" not in line.partition(";")[0]]
    assert lines
    assert not wrong


def test_the_wheel_holds_only_packages_named_assay(wheels: dict[str, Path]):
    run(sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheels["assay"])
    with zipfile.ZipFile(wheels["assay"]) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert all(top == "assay" or top.startswith("assay_") for top in tops), tops
    assert "assay/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "examples/", "core/", "plugins/")) for name in names)
    assert {"assay/demo/full.toml", "assay/demo/quick.toml", "assay/reports/templates/report.html"} <= set(names)


def test_a_third_partys_verifier_is_installed_listed_checked_and_used_beside_a_broken_one(
    wheels: dict[str, Path], tmp_path: Path
):
    folder = tmp_path / "env"
    venv.create(folder, with_pip=True)
    python, assay = folder / "bin" / "python", folder / "bin" / "assay"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-c", ROOT / "requirements.lock"]
    run(*pip, wheels["assay"], wheels["assay_haiku"], wheels["assay_broken"])

    listing = run(assay, "plugins", cwd=tmp_path)
    assert "haiku" in listing
    assert "assay-haiku" in listing
    cause = "No module named 'a_library_that_is_not_installed' (assay_broken/__init__.py:3)"
    assert f"plugin assay-broken 0.2.0: not loaded: ModuleNotFoundError: {cause}" in listing
    assert cause in run(assay, "plugins", "--broken", cwd=tmp_path)

    cases = (ROOT / "examples" / "assay-haiku" / "cases.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in cases.splitlines()]
    data = tmp_path / "poems.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": r["prompt"], "response": r["text"]}) for r in rows), "utf-8")
    run(assay, "score", data, "-r", "haiku", cwd=tmp_path)
    scored = [json.loads(line) for line in (tmp_path / "poems.scored.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["verdicts"][0]["source"] for row in scored] == ["haiku"] * len(rows)
    assert scored[0]["reward"] == 1.0
    assert scored[-1]["verdicts"][0]["status"] == "abstained"

    without_torch = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False).stderr
    assert "No module named 'torch'" in without_torch
    config = tmp_path / "rlvr.toml"
    config.write_text(
        'kind = "rlvr"\nsteps = 1\npolicy = { model = "smollm2-135m-instruct" }\n'
        'tasks = { use = "jsonl", path = "poems.jsonl", columns = { prompt = "prompt" } }\n'
        'rewards = [{ use = "haiku" }]\n',
        encoding="utf-8",
    )
    refused = subprocess.run([assay, "train", config], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2, refused.stderr
    assert 'python -m pip install "assay[train]"' in refused.stderr
    assert "Traceback" not in refused.stderr
