"""Runs of the longer scripts: each has a folder of its own, and one that was ended goes on with the same command."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import assay
from assay import runs
from assay.config.load import parse_config
from assay.result import Run


def finished(where: Path, config: Mapping[str, Any], *, base_dir: Path) -> Run:
    """The run of this config that came to its end, the only one in the folder `where`.

    What ended it early, a signal for instance, ends the script too: nothing is measured on a part of a run.
    """
    found = runs.run_folders(where)
    run = Run(found[-1]) if found else None
    if run is None or not _is_done(run):
        parsed: Any = parse_config({**config, "runs_dir": str(where)})
        run = assay.train(parsed, base_dir=base_dir, resume=run)
    if not _is_done(run):
        sys.exit(f"{run.folder.name} was ended; the same command goes on")
    return run


def _is_done(run: Run) -> bool:
    outcome = run.folder / runs.OUTCOME
    return outcome.is_file() and json.loads(outcome.read_text("utf-8"))["status"] == "done"
