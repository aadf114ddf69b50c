"""The README's paths as a newcomer goes them, and the seconds that each took; one JSON line per path.

    python tests/benchmarks/first_minutes.py [--only NAME] [--keep FOLDER]

| path | what is done | environment |
|---|---|---|
| score | assay's wheel into a fresh environment, then the README's JSONL file with `math` | fresh |
| verifier | `assay new`, installed, listed, checked, and used on a file | fresh |
| verifier-in-a-run | the same package as a reward of a training run | this one |
| rlvr | the README's config with a reward in a local file, on a tiny model | this one |
| trl | the example script: TRL's GRPOTrainer with an assay reward | this one |
| serve | the server is started and gives a verdict to curl | this one |
| plugins | `assay plugins` beside twelve broken plugins: first, and with the manifest known | this one |

The fresh environment needs a package index; its seconds are in `install_s`, apart. Paths that train run on this
environment's torch, which alone takes longer to install than they take. A path that cannot be gone here says why.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
REWARD = "rewards.0={use='brief'}"


class Place(NamedTuple):
    """Where a path is gone: a folder of its own, and the environment of its commands."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, *command: str | Path, needs: str = "") -> str:
        """Run one command; its output must hold `needs`."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            check=False,
        )
        told = done.stdout + done.stderr
        if done.returncode != 0 or needs not in told:
            raise SystemExit(
                f"{' '.join(map(str, command))}: exit code {done.returncode}, wanted {needs!r} in:\n{told}"
            )
        return told


class NotHereError(Exception):
    """The path cannot be gone here, and why."""


def place(parent: Path, name: str, binaries: Path, **environment: str) -> Place:
    """A fresh folder with the README's files, and commands found in `binaries` first."""
    folder = parent / name
    folder.mkdir()
    page = (ROOT / "README.md").read_text("utf-8")
    for file, text in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (folder / file).write_text(text, encoding="utf-8")
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    cache = str(folder / "cache")
    return Place(folder, {**os.environ, "PATH": path, "XDG_CACHE_HOME": cache, "OMP_NUM_THREADS": "1", **environment})


def here(parent: Path, name: str, **environment: str) -> Place:
    """A place in this environment."""
    return place(parent, name, Path(sys.executable).parent, **environment)


def fresh(parent: Path, name: str) -> tuple[Place, float]:
    """A place in a new environment with assay's wheel, and the seconds that took."""
    folder = parent / "environment"
    began = time.monotonic()
    if not folder.is_dir():
        outside = here(parent, "wheel")
        outside.run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", outside.folder, ROOT)
        (wheel,) = outside.folder.glob("*.whl")
        venv.create(folder, with_pip=True)
        pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        outside.run(*pip, "-c", ROOT / "requirements.lock", wheel, "hatchling", "pytest", "editables")
    return place(parent, name, folder / "bin"), time.monotonic() - began


def score(parent: Path) -> dict[str, float]:
    """A JSONL file with `math`, from nothing."""
    there, install_s = fresh(parent, "score")
    began = time.monotonic()
    there.run("assay", "score", "answers.jsonl", "-r", "math", needs="math")
    there.run("assay", "show", "latest", "--status", "abstained", needs="no_answer")
    return {"install_s": install_s, "seconds": time.monotonic() - began}


def verifier(parent: Path) -> dict[str, float]:
    """A verifier of one's own."""
    there, install_s = fresh(parent, "verifier")
    began = time.monotonic()
    there.run("assay", "new", "brief", needs="wrote assay-brief")
    pip = ("python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    there.run(*pip, "--no-deps", "--no-build-isolation", "-e", "assay-brief")
    there.run("assay", "plugins", needs="brief")
    there.run("assay", "check", "brief", needs="0 failed")
    there.run("python", "-m", "pytest", "-q", "assay-brief/tests", needs="passed")
    there.run("assay", "score", "answers.jsonl", "-r", "brief", needs="brief")
    return {"install_s": install_s, "seconds": time.monotonic() - began}


def verifier_in_a_run(parent: Path) -> dict[str, float]:
    """The package of a new verifier beside this environment's torch."""
    there = here(parent, "verifier-in-a-run", PYTHONPATH=str(parent / "verifier-in-a-run" / "site"))
    _tiny_model(there)
    began = time.monotonic()
    there.run("assay", "new", "brief")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
    there.run(*pip, "--no-build-isolation", "--target", "site", "./assay-brief")
    there.run(*_train("--set", REWARD), needs="finished 2 steps")
    return {"seconds": time.monotonic() - began}


def rlvr(parent: Path) -> dict[str, float]:
    """The README's config and local reward."""
    there = here(parent, "rlvr")
    _tiny_model(there)
    began = time.monotonic()
    there.run(*_train("--dry-run"), needs="in order")
    there.run(*_train(), needs="finished 2 steps")
    return {"seconds": time.monotonic() - began}


def trl(parent: Path) -> dict[str, float]:
    """The example script of TRL's trainer, on the tiny model and the README's questions."""
    there = here(parent, "trl")
    _tiny_model(there)
    rows = [json.loads(line) for line in (there.folder / "answers.jsonl").read_text("utf-8").splitlines()]
    data = [{"prompt": row["problem"], "answer": row["answer"]} for row in rows * 4]
    (there.folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, data)), encoding="utf-8")
    script = ROOT / "examples" / "other-trainers" / "trl_grpo.py"
    began = time.monotonic()
    there.run(sys.executable, script, "tiny", "prompts.jsonl", needs="rewards/")
    return {"seconds": time.monotonic() - began}


def serve(parent: Path) -> dict[str, float]:
    """A verdict by curl."""
    if shutil.which("curl") is None:
        raise NotHereError("there is no curl here")
    there = here(parent, "serve")
    item = {"task": {"prompt": "1/2 + 1/4?", "reference": "0.75"}, "rollout": {"text": "It is \\boxed{\\frac{3}{4}}."}}
    body = json.dumps({"items": [{"id": "first", **item}]})
    began = time.monotonic()
    server = subprocess.Popen(
        ["assay", "serve", "-r", "math", "--port", "0", "--json"],
        cwd=there.folder,
        env=dict(there.environment),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        url = json.loads(server.stdout.readline())["url"]
        header = ("-H", "content-type: application/json")
        there.run("curl", "-sS", "--fail", f"{url}/v1/score", *header, "-d", body, needs='"value":1.0')
        seconds = time.monotonic() - began
    finally:
        server.terminate()
        server.communicate(timeout=60)
    return {"seconds": seconds}


def plugins(parent: Path) -> dict[str, float]:
    """The list of plugins beside broken ones."""
    site = parent / "plugins" / "site"
    there = here(parent, "plugins", PYTHONPATH=str(site))
    harm = [
        "time.sleep(60)",
        "sys.exit(0)",
        "os._exit(0)",
        "math.sqrt = len",
        "raise BaseException('no')",
        "import nothing",
    ]
    for number in range(12):
        info = site / f"third_{number}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"third_{number}.py").write_text(f"import math, os, sys, time\n{harm[number % 6]}\n", encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: third-{number}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[assay.plugins]\nt{number} = third_{number}\n", encoding="utf-8")
    seconds: list[float] = []
    for _ in range(2):
        began = time.monotonic()
        told = there.run("assay", "plugins", needs="third-11")
        seconds.append(time.monotonic() - began)
        assert told.count("! plugin third-") == 12, told
    return {"first_s": seconds[0], "seconds": seconds[1]}


def _tiny_model(there: Place) -> None:
    code = (
        "from pathlib import Path; from assay.training.quick_start import quick_start_model as made; made(Path('tiny'))"
    )
    there.run(sys.executable, "-c", code)


def _train(*flags: str) -> tuple[str, ...]:
    settings = ("policy.model=tiny", "engine.template=plain", "engine.max_new_tokens=12")
    return ("assay", "train", "rlvr.toml", "--steps", "2", *(f"--set={item}" for item in settings), *flags)


PATHS: dict[str, Callable[[Path], dict[str, float]]] = {
    "score": score,
    "verifier": verifier,
    "verifier-in-a-run": verifier_in_a_run,
    "rlvr": rlvr,
    "trl": trl,
    "serve": serve,
    "plugins": plugins,
}


def main() -> None:
    """Go the paths and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PATHS, action="append", help="only this path; may be repeated")
    parser.add_argument("--keep", type=Path, help="a folder that the files are left in")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        parent = arguments.keep or Path(made)
        parent.mkdir(parents=True, exist_ok=True)
        for name in arguments.only or PATHS:
            try:
                figures = PATHS[name](parent)
            except NotHereError as error:
                print(json.dumps({"path": name, "skipped": str(error)}), flush=True)
                continue
            rounded = {key: round(value, 2) for key, value in figures.items()}
            print(json.dumps({"path": name, **rounded, "load": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    main()
