"""Run folders: when one begins to be one."""

import os
from pathlib import Path

import pytest

from assay import runs
from assay.contracts import RunInfo
from assay.errors import ConfigError
from assay.store import RunStore


def test_a_folder_whose_log_a_kill_left_half_made_is_no_run(tmp_path: Path) -> None:
    folder = runs.new_run_folder(tmp_path, "half")
    pid = os.fork()
    if pid == 0:  # ended by the kernel at the first byte that it writes beyond this, in the middle of the tables
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
        RunStore.create(folder, RunInfo(id="half", name="half", kind="rlvr", folder=str(folder), seed=1))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert [file.name for file in folder.iterdir()]
    assert runs.run_folders(tmp_path) == []
    with pytest.raises(ConfigError, match="no run 'latest'"):
        runs.find_run("latest", tmp_path)


def test_the_config_appears_whole(tmp_path: Path) -> None:
    folder = runs.new_run_folder(tmp_path, "whole")
    runs.write_config(folder, "steps = 1\n")
    assert [file.name for file in folder.iterdir()] == [runs.CONFIG]
    assert (folder / runs.CONFIG).read_text(encoding="utf-8") == "steps = 1\n"
    assert runs.run_folders(tmp_path) == [folder]
