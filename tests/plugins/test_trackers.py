"""Trackers: TensorBoard and wandb (offline) for real, trackio by the calls that its version 0.43.0 takes."""

import inspect
import json
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.component import BuildContext, Component
from assay.config.run import Use
from assay.contracts import RunInfo
from assay.errors import PluginError
from assay.observers import Trackers
from assay.protocols import Tracker
from assay.registry import Registry
from assay_trackers import assay_trackers

COMPONENTS: dict[str, Component[Any, Tracker]] = {component.name: component for component in assay_trackers()}


def context(folder: Path) -> BuildContext:
    return BuildContext(run=RunInfo(id="sums-12ab", name="sums", kind="rlvr", folder=str(folder), seed=1, plugins={}))


def tracker(name: str, folder: Path, **options: Any) -> Tracker:
    component = COMPONENTS[name]
    return component.build(component.config(**options), context(folder))


def test_tensorboard_has_every_number_and_a_resumed_run_purges_the_steps_that_it_makes_again(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = tracker("tensorboard", tmp_path)
    assert not list(tmp_path.iterdir()), "nothing is begun before the first step"
    for step in (1, 2, 3):
        first.log(step, {"reward": step / 10, "scored": 4.0})
    first.close()
    again = tracker("tensorboard", tmp_path)
    for step in (3, 4):
        again.log(step, {"reward": step * 10})
    again.close()
    events: Any = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    values = [(item.step, round(item.value, 5)) for item in events.Scalars("reward")]
    assert values == [(1, 0.1), (2, 0.2), (3, 30.0), (4, 40.0)]
    assert [item.value for item in events.Scalars("scored")] == [4.0, 4.0]


WANDB = """
import sys
from assay.component import BuildContext
from assay.contracts import RunInfo
from assay_trackers.services import WandbOptions, build_wandb
run = RunInfo(id="sums-12ab", name="sums", kind="rlvr", folder=sys.argv[1], seed=1, plugins={})
tracker = build_wandb(WandbOptions(project="sums"), BuildContext(run=run))
for step in (1, 2):
    tracker.log(step, {"reward": step / 2})
tracker.close()
print("a line of results")
"""


def test_wandb_keeps_a_run_on_this_machine_and_leaves_stdout_alone(tmp_path: Path):
    pytest.importorskip("wandb")
    done = subprocess.run(
        [sys.executable, "-c", WANDB, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a line of results\n"
    (log,) = (tmp_path / "wandb").glob("offline-run-*/run-sums-12ab.wandb")
    assert b"reward" in log.read_bytes()
    assert not list((tmp_path / "wandb").glob("run-*")), "an online run was begun"


class Recorder(types.ModuleType):
    """The part of trackio 0.43.0 that is used, with its signatures; keeps the calls."""

    def __init__(self) -> None:
        super().__init__("trackio")
        self.calls: list[Any] = []

    def init(
        self,
        project: str,
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
        server_url: str | None = None,
        dataset_id: str | None = None,
        bucket_id: str | None = None,
        config: dict[str, Any] | None = None,
        resume: str = "never",
        settings: Any = None,
        private: bool | None = None,
        embed: bool = True,
        auto_log_gpu: bool | None = None,
        gpu_log_interval: float = 10.0,
        auto_log_cpu: bool | None = None,
        cpu_log_interval: float = 10.0,
        webhook_url: str | None = None,
        webhook_min_level: str | None = None,
    ) -> "Recorder":
        print("* Trackio project initialized")
        self.calls.append(("init", project, name, resume, space_id, server_url, dataset_id, bucket_id, embed))
        return self

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.calls.append(("log", metrics, step))

    def finish(self) -> None:
        self.calls.append("finish")


def test_trackio_is_called_as_its_version_takes_it_and_uploads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "trackio", recorder)
    ours = tracker("trackio", tmp_path, project="sums")
    ours.log(1, {"reward": 0.5})
    ours.log(2, {"reward": 1.0})
    ours.close()
    begun = ("init", "sums", "sums-12ab", "allow", None, None, None, None, False)
    assert recorder.calls == [begun, ("log", {"reward": 0.5}, 1), ("log", {"reward": 1.0}, 2), "finish"]
    assert capsys.readouterr().out == ""


def test_the_installed_trackio_takes_the_same_arguments():
    trackio: Any = pytest.importorskip("trackio", reason="trackio is not installed here")
    assert {"project", "name", "resume", "embed", "auto_log_cpu"} <= set(inspect.signature(trackio.init).parameters)


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_a_missing_library_is_one_sentence_that_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    for loaded in [module for module in sys.modules if module.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(PluginError) as error:
        Trackers.open([Use(use=name)], registry=Registry.load(), context=BuildContext(), emit=lambda event: None)
    said = str(error.value)
    assert f"tracker {name!r} needs the package {name!r}, which is not installed; install it with: python -m" in said
    assert f'"assay[{name}]"' in said


class Broken:
    """A tracker whose disk is full from the second step on."""

    def __init__(self) -> None:
        self.logged = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step > 1:
            raise OSError("no space left on device")
        self.logged += 1

    def close(self) -> None:
        raise AssertionError("closed although it was left out")


class Steps:
    """A tracker that keeps the steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.steps.append(-1)


def test_a_tracker_that_raises_is_named_once_and_left_out_while_the_others_go_on():
    events: list[Mapping[str, Any]] = []
    steps, broken = Steps(), Broken()
    trackers = Trackers({"trackers[0] (broken)": broken, "trackers[1] (steps)": steps}, events.append)
    for step in (1, 2, 3):
        trackers.log(step, {"reward": 1.0})
    trackers.close()
    assert steps.steps == [1, 2, 3, -1]
    assert broken.logged == 1
    (event,) = events
    assert event["text"].startswith("trackers[0] (broken): OSError: no space left on device; the run goes on")


def test_a_run_copies_its_steps_and_a_missing_library_is_told_before_any_work(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    import assay
    from assay.config.load import parse_config
    from assay.training.tiny import make_tiny_model

    model = make_tiny_model(tmp_path / "model", seed=1)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "question": "digits", "answer": "1"}\n', "utf-8")
    tree: dict[str, Any] = {
        "kind": "rlvr",
        "steps": 2,
        "runs_dir": str(tmp_path / "runs"),
        "policy": {"model": str(model)},
        "tasks": {"use": "jsonl", "path": str(tmp_path / "tasks.jsonl")},
        "engine": {"use": "transformers", "template": "plain", "group_size": 2, "max_new_tokens": 4},
        "rewards": [{"use": "length", "max_tokens": 3}],
        "loop": {"groups_per_step": 1},
        "trackers": [{"use": "tensorboard"}],
    }
    run = assay.train(parse_config(json.loads(json.dumps(tree))))
    events: Any = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert [item.step for item in events.Scalars("scored")] == [1, 2]
    tree["trackers"] = [{"use": "tensorbord"}]
    with pytest.raises(assay.ConfigError, match=r"trackers\[0\].use: no tracker named 'tensorbord'.*'tensorboard'"):
        assay.train(parse_config(tree))
