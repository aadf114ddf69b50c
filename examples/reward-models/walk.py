"""Runs the guide's commands in a fresh folder: from outcome labels to a reward model that ranks answers.

python walk.py [--folder walk] [--problems 300] [--updates 600]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("make_data.py", "verdict.py", "step.toml", "implicit.toml")


def commands() -> list[str]:
    """Every command of the page, in order."""
    page = (HERE / "README.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def walk(folder: Path, problems: int, updates: int) -> None:
    """Run them all; raises `CalledProcessError` for the first that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    # The programs of the environment that runs this script come first.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands():
        if command.startswith("python make_data.py"):
            command += f" --problems {problems} --updates {updates}"
        elif command.startswith("assay train"):
            command += f" --steps {updates}"
        print(f"$ {command}", flush=True)
        began = time.monotonic()
        subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path}, check=True)
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)


def main() -> None:
    """Read the sizes and go."""
    parser = argparse.ArgumentParser(description="Runs the guide's commands.")
    parser.add_argument("--folder", type=Path, default=Path("walk"))
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--updates", type=int, default=600)
    given = parser.parse_args()
    walk(given.folder, given.problems, given.updates)


if __name__ == "__main__":
    main()
