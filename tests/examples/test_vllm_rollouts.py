"""The example of a run on a vLLM server: its config is in order; the run itself is tested in tests/engines."""

from pathlib import Path

from assay.config.load import load_config
from assay.config.refs import checked
from assay.config.run import RlvrConfig
from assay.preflight import make_context, read_tasks
from assay.registry import Registry
from assay_engines.vllm.options import VLLMOptions

FOLDER = Path(__file__).parents[2] / "examples" / "vllm-rollouts"


def test_its_config_and_tasks_are_read_and_its_options_are_the_engines() -> None:
    config = load_config(FOLDER / "sums.toml")
    assert isinstance(config, RlvrConfig)
    registry = Registry.load()
    _, options = checked(registry, "rollout_engine", config.engine.use, config.engine.options, where="engine")
    assert isinstance(options, VLLMOptions)
    assert options.max_model_len == 256
    tasks = read_tasks(registry, config.tasks, make_context(registry, base_dir=FOLDER, seed=0), where="tasks")
    assert len(tasks) == 40
    assert all(r"\boxed{12}" in task.prompt and str(task.reference).isdigit() for task in tasks)
