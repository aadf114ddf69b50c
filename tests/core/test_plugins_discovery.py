"""Finding plugins: real distributions on the path, some of them broken or hostile, probed in real child processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.discovery import installed_plugins
from assay.errors import ConfigError
from assay.registry import Registry, component_from

Install = Callable[[str, str], None]

GOOD = """
from typing import Any
from assay import Component, RewardSource, Rollout, Task, Verdict, hookimpl, verifier

@verifier("{name}", summary="always one")
def source(task: Task, rollout: Rollout) -> Verdict:
    return Verdict.score(1.0)

@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    return [source]
"""

HOSTILE = {
    "raises": ("raise RuntimeError('no luck')", "RuntimeError: no luck (p_raises.py:1)"),
    "missing": ("import not_there_at_all", "No module named 'not_there_at_all'"),
    "exits": ("import sys; sys.exit(0)", "SystemExit"),
    "os_exits": ("import os; os._exit(0)", "ended the process with status 0"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended the process with status -11"),
    "sleeps": ("import time; time.sleep(60)", "did not end within"),
    "forks": ("import subprocess, sys; subprocess.Popen(['sleep', '300']); raise ValueError('x')", "ValueError: x"),
    "patches": ("import math; math.sqrt = lambda x: 42.0", "changes math.sqrt"),
    "builtin": ("import builtins; builtins.len = lambda x: 0", "changes builtins.len"),
    "syntax": ("def f(:", "SyntaxError"),
    "unknown_hook": (
        "from assay import hookimpl\n@hookimpl\ndef assay_no_such_hook():\n    return []",
        "assay_no_such_hook",
    ),
    "ends_its_parent": ("import os, time; os.kill(os.getppid(), 9); time.sleep(60)", "the process that asked about it"),
    "stops_its_parent": (
        "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)",
        "its import ended, stopped or spoke for the process that asked about it",
    ),
    "speaks_for_its_parent": (
        "import os\nwith open(f'/proc/{os.getppid()}/fd/1', 'w') as out:\n    out.write('no answer\\n')",
        "the process that asked about it",
    ),
    "forges": (
        "import os\nfor fd in range(3, 9):\n    try:\n"
        '        os.write(fd, b\'{"module": "p_forges", "components": 3}\\n\')\n'
        "    except OSError:\n        pass\nos._exit(0)",
        "what it offers cannot be read",
    ),
    "wrong_facts": (
        GOOD.format(name="wrong").replace("[source]", "[__import__('dataclasses').replace(source, facts={'a': 1})]"),
        "it offers facts.a wrongly: Input should be a valid string",
    ),
    "wrong_type": (
        "from assay import hookimpl\n@hookimpl\ndef assay_reward_sources():\n    return [1]",
        "expected Component; found int 1",
    ),
}


def test_a_third_partys_component_is_found_and_built_by_name(install: Install):
    install("good", GOOD.format(name="always-one"))
    registry = Registry.load()
    assert "always-one" in registry.names("reward_source")
    origin = registry.origin("reward_source", "always-one")
    assert (origin.distribution, origin.version, origin.builtin, origin.module) == (
        "third-good",
        "1.2",
        False,
        "p_good",
    )
    assert registry.component("reward_source", "always-one").isolation == "process"
    assert component_from("p_good", "reward_source", "always-one").summary == "always one"


def test_broken_plugins_cost_themselves_and_are_named_with_their_causes(install: Install):
    for name, (code, _) in HOSTILE.items():
        install(name, code)
    install("good", GOOD.format(name="always-one"))
    registry = Registry.load()
    assert len(registry.problems) == len(HOSTILE)
    for problem, name in zip(registry.problems, sorted(HOSTILE), strict=True):
        assert problem.startswith(f"plugin third-{name} 1.2: not loaded: ")
        assert HOSTILE[name][1] in problem
    assert {"always-one", "exact"} <= set(registry.names("reward_source"))
    done = subprocess.run(
        [sys.executable, "-m", "assay", "plugins"], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.returncode == 0, done.stderr
    assert "always-one" in done.stdout
    for problem in registry.problems:
        assert f"! {problem}" in done.stdout


def test_the_answer_about_a_plugin_that_sleeps_is_remembered_until_its_files_change(install: Install, tmp_path: Path):
    imported = tmp_path / "imported"
    install("sleeps", f"open({str(imported)!r}, 'a').write('x')\n{HOSTILE['sleeps'][0]}")
    assert [p.state for p in installed_plugins() if p.name == "sleeps"] == ["broken"]
    before = imported.read_text(encoding="utf-8")
    assert before
    assert [p.state for p in installed_plugins() if p.name == "sleeps"] == ["broken"]
    assert imported.read_text(encoding="utf-8") == before, "the cached answer must not probe again"
    (tmp_path / "site" / "p_sleeps.py").write_text(GOOD.format(name="awake"), encoding="utf-8")
    assert [p.state for p in installed_plugins() if p.name == "sleeps"] == ["ok"]


def test_what_a_plugin_prints_at_import_is_not_taken_for_its_answer(install: Install):
    forged = '{"module": "p_prints", "components": [{"kind": "reward_source", "name": "forged"}]}'
    install("prints", f"print({forged!r}, flush=True)\n" + GOOD.format(name="printed"))
    names = Registry.load().names("reward_source")
    assert "printed" in names
    assert "forged" not in names


def test_on_a_name_clash_the_built_in_stays_and_both_are_named(install: Install):
    install("thief", GOOD.format(name="exact"))
    registry = Registry.load()
    assert registry.origin("reward_source", "exact").distribution == "assay"
    (problem,) = registry.problems
    assert "third-thief 1.2" in problem
    assert "'exact' refused: the name is taken by assay" in problem


@pytest.mark.parametrize(("setting", "state"), [("none", "blocked"), ("other", "blocked"), ("good,other", "ok")])
def test_the_environment_limits_which_plugins_load(
    install: Install, monkeypatch: pytest.MonkeyPatch, setting: str, state: str
):
    install("good", GOOD.format(name="always-one"))
    monkeypatch.setenv("ASSAY_PLUGINS", setting)
    plugins = {plugin.name: plugin for plugin in installed_plugins()}
    assert plugins["good"].state == state
    assert plugins["math"].state == "ok"


def test_an_unknown_name_is_refused_with_the_nearest_one_and_the_broken_plugins(install: Install):
    install("missing", HOSTILE["missing"][0])
    with pytest.raises(
        ConfigError, match=r"rewards\[1\].use: no reward source named 'exat'; installed: .*exact"
    ) as error:
        Registry.load().component("reward_source", "exat", where="rewards[1].use")
    assert "Did you mean 'exact'?" in str(error.value)
    assert "third-missing 1.2: not loaded: ModuleNotFoundError" in str(error.value)


def test_no_process_of_a_probe_is_left(install: Install):
    command = f"sleep 7654.{os.getpid()}"  # other tests of this machine must not meet it
    install("forks", f"import subprocess\nsubprocess.Popen({command.split()!r})\n" + GOOD.format(name="forked"))
    assert "forked" in Registry.load().names("reward_source")
    deadline = time.monotonic() + 60
    while command in (listing := _commands()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert command not in listing


def _commands() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
