"""Run folders: when one begins to be one."""

import json
import os
from pathlib import Path

import pytest

from assay import runs
from assay.cli import main
from assay.contracts import RunInfo
from assay.errors import ConfigError
from assay.store import RunStore, sqlite
from assay.training.tiny import make_tiny_model


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


CONFIGS = {
    "rlvr": """
tasks = { use = "jsonl", path = "data.jsonl" }
engine = { template = "plain", group_size = 2, max_new_tokens = 4 }
rewards = [{ use = "math" }]
optimizer = { use = "dr_grpo" }
""",
    "sft": """
data = { path = "data.jsonl" }
training = { batch_size = 2 }
""",
}
TOP = 'kind = "{kind}"\nname = "sums"\nsteps = 1\npolicy = {{ model = "model" }}\n'


class KilledError(BaseException):
    """Stands for a signal that nothing can catch."""


@pytest.mark.parametrize("command", ["score data.jsonl -r math", "score latest", "train rlvr.toml", "train sft.toml"])
def test_a_command_that_is_killed_while_its_log_is_made_leaves_no_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n}+1=", "response": f"\\boxed{{{n + 1}}}", "answer": str(n + 1)} for n in range(4)]
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if command == "score latest":
        assert main(["score", "data.jsonl", "-r", "math"]) == 0
    if command.startswith("train"):
        make_tiny_model(tmp_path / "model", hidden_size=16, layers=1)
        for kind, rest in CONFIGS.items():
            Path(f"{kind}.toml").write_text(TOP.format(kind=kind) + rest, encoding="utf-8")
    before = runs.run_folders(Path("runs"))

    def half(path: Path, _: RunInfo) -> None:
        path.write_bytes(b"SQLite")
        raise KilledError

    monkeypatch.setattr(sqlite, "_make", half)
    with pytest.raises(KilledError):
        main(command.split())
    assert len(list(Path("runs").iterdir())) == len(before) + 1
    assert runs.run_folders(Path("runs")) == before
