"""Options, names and contradictions: a composition is what the config says, or one clear sentence."""

import re
import subprocess
import sys

import pytest

from assay.component import BuildContext, Options, Part
from assay.contracts.tensors import TrainBatch
from assay.errors import ConfigError
from assay_optim import assay_objectives, assay_optimizer_parts, assay_policy_optimizers, objective, optimizer
from assay_optim.aggregation import Constant
from assay_optim.presets import PRESETS
from assay_optim.table import COLUMNS
from assay_optim.trust_region import Clip, Truncate

COMPONENTS = {component.name: component for component in assay_policy_optimizers()}


def test_listing_imports_no_torch() -> None:
    code = (
        "import sys, assay_optim as o\n"
        "list(o.assay_policy_optimizers()), list(o.assay_optimizer_parts()), list(o.assay_objectives())\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_option_of_a_standing_part_can_be_changed() -> None:
    region = optimizer("grpo", trust_region={"high": 0.28}).trust_region
    assert isinstance(region, Clip)
    assert (region.low, region.high) == (0.2, 0.28)


def test_a_part_can_be_replaced_by_name_or_by_table() -> None:
    assert isinstance(optimizer("grpo", aggregation="constant").aggregation, Constant)
    region = optimizer("grpo", trust_region={"use": "truncate", "cap": 3}).trust_region
    assert isinstance(region, Truncate)
    assert region.cap == 3


def test_the_options_of_a_preset_hold_its_whole_composition_and_are_a_config_again() -> None:
    for component in COMPONENTS.values():
        written = component.config().model_dump(mode="json", exclude_none=True)
        again = component.config(**written)
        assert again == component.config()
        assert written["trust_region"]["use"]


def test_needs_follow_from_the_parts() -> None:
    assert optimizer("grpo").needs.logp_ref
    assert not optimizer("grpo", regularisers=[]).needs.logp_ref
    assert not optimizer("grpo", regularisers=[{"use": "kl", "beta": 0.0}]).needs.logp_ref
    assert optimizer("ppo").needs.values
    assert optimizer("dppo_topk").needs.topk == 20
    assert optimizer("scalerl").needs.logp_gen
    assert not optimizer("scalerl").needs.logp_old
    assert not optimizer("reinforce").needs.logp_old
    assert optimizer("rloo").needs.old_in_prepare
    assert optimizer("disco").needs.batch_logp
    assert optimizer("kimi").needs.reference_every == 16
    assert optimizer("kimi").needs.reset_optimizer
    assert optimizer("rto").needs.models == ("dpo",)
    assert optimizer("repo").needs.channels == ("cost",)
    assert optimizer("grpo").needs.group_size_min == 2
    assert optimizer("reinforce_pp").needs.group_size_min == 1


def test_pure_methods_have_no_state() -> None:
    pure = {
        "grpo", "rloo", "dr_grpo", "dapo", "cispo", "gspo", "gspo_token", "maxrl", "maxrl_t", "dppo", "dppo_kl",
        "reinforce_batch_mean", "reinforce_pp", "reinforce_pp_baseline", "ngrpo", "tulu3_1", "rlvr_world",
    }  # fmt: skip
    stateful = {"reinforce", "ppo", "scalerl", "lambda_grpo", "kimi", "rto", "repo", "tulu3"}
    assert all(not optimizer(name).sidecars for name in pure)
    assert all(optimizer(name).sidecars for name in stateful)


CONTRADICTIONS: list[tuple[str, dict[str, object], str]] = [
    ("grpo", {"baseline": "critic"}, "baseline: a critic is only used by the credit 'gae'; the credit is 'broadcast'"),
    ("grpo", {"credit": "gae"}, "credit: 'gae' needs a critic; the baseline is 'group_mean'; set baseline = 'critic'"),
    ("rloo", {"trust_region": "clip"}, "trust_region: 'clip' limits a ratio and the ratio is 'none'; set ratio ="),
    ("kimi", {"baseline": "ema"}, "baseline: the estimator 'kimi' gives advantages in one piece; found baseline as"),
    ("gspo", {"credit": "return_to_go"}, "ratio: 'sequence' has one ratio per response and the credit 'return_to_go'"),
    ("gspo", {"trust_region": "divergence_mask"}, "trust_region: 'divergence_mask' compares single tokens"),
    ("repo", {"ratio": "sequence"}, "ratio: 'sequence' has one ratio per response and the estimator 'rectified' one"),
    ("prime", {"credit": "broadcast"}, "baseline: 'group_loo_per_source' centres the rewards of tokens and the credit"),
    (
        "maxrl_t",
        {"shaping": ["kl_in_reward"]},
        "shaping: 'kl_in_reward' pays single tokens and the estimator 'maclaurin'",
    ),
    (
        "disco",
        {"shaping": ["process_reward"]},
        "shaping: 'process_reward' pays single tokens and the estimator 'disco'",
    ),
    ("disco", {"estimator": {"positive": 0}}, "estimator: positive and negative are the same reward, 0; give them"),
    ("grpo", {"shaping": [{"use": "reward_clip", "low": 3, "high": 2}]}, "shaping[0]: high is below low: 3..2"),
    (
        "grpo",
        {"shaping": [{"use": "overlong", "max_tokens": 10, "cache_tokens": 20}]},
        "shaping[0]: cache_tokens is above max_tokens: 20 of 10",
    ),
    (
        "grpo",
        {"task_sampler": {"use": "accuracy_band", "low": 0.9, "high": 0.1}},
        "task_sampler: high is below low: 0.9..0.1",
    ),
    ("grpo", {"sidecars": ["critic"]}, "sidecars[0].use: no sidecar named 'critic'; known: none."),
    ("reinforce", {"virtual_samples": {}}, "virtual_samples: they enter the statistics of a group; the baseline is"),
    ("kimi", {"shaping": ["length_reward"] * 2}, "two parts keep state under the name 'length_reward'"),
    (
        "grpo",
        {"trust_region": "clipp"},
        "trust_region.use: no trust region named 'clipp'; known: clip, divergence_mask",
    ),
    ("grpo", {"trust_region": "clipp"}, "Did you mean 'clip'?"),
    ("grpo", {"trust_region": {"hihg": 0.3}}, "trust_region.hihg: trust region 'clip' has no such option; known: dual"),
    ("grpo", {"trust_region": {"hihg": 0.3}}, "Did you mean 'high'?"),
    ("grpo", {"trust_region": {"high": -1}}, "trust_region.high: Input should be greater than or equal to 0; found -1"),
    ("grpo", {"trust_regoin": "clip"}, "optimizer.trust_regoin: optimizer 'grpo' has no such option; known: "),
    ("grpo", {"trust_regoin": "clip"}, "Did you mean 'trust_region'?"),
    ("grpo", {"aggregation": 3}, "optimizer.aggregation: Input should be a valid dictionary"),
    ("grpo", {"regularisers": [{"use": "kl", "sample": "k9"}]}, "regularisers[0].sample: Input should be 'k1', 'k2'"),
]


@pytest.mark.parametrize(("preset", "options", "sentence"), CONTRADICTIONS)
def test_a_contradiction_is_one_sentence(preset: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        optimizer(preset, **options)
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_or_objective_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.use: no optimizer named 'grppo'; .* Did you mean 'grpo'\?"):
        optimizer("grppo")
    with pytest.raises(ConfigError, match=r"objective.use: no objective named 'dppo'; .* Did you mean 'dpo'\?"):
        objective("dppo")


MISTAKES: list[tuple[str, dict[str, object], str]] = [
    ("dpo", {"lnik": "square"}, "objective.lnik: objective 'dpo' has no such option; known: "),
    ("dpo", {"lnik": "square"}, "Did you mean 'link'?"),
    ("dpo", {"link": {"bta": 1}}, "objective.link.bta: link 'logistic' has no such option; known: beta, gamma"),
    ("kto", {"beta": "x"}, "objective.beta: Input should be a valid number"),
    (
        "simpo",
        {"reference": "frozn"},
        "objective.reference: Input should be 'frozen', 'iterate' or 'none'; found 'frozn'",
    ),
    ("spin", {"reference": 3}, "objective.reference: Input should be 'frozen', 'iterate' or 'none'; found 3"),
    ("larpo_listmle", {"form": "list"}, "objective.form: Input should be 'contrastive', 'lambdarank' or 'listmle'"),
]


@pytest.mark.parametrize(("name", "options", "sentence"), MISTAKES)
def test_a_mistake_in_an_objective_is_one_sentence(name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        objective(name, **options)
    assert "\n" not in str(caught.value)


class Halved(Options):
    """Half of every reward."""

    def shape(self, batch: TrainBatch) -> TrainBatch:
        from dataclasses import replace

        return replace(batch, reward=batch.reward / 2)


def test_a_part_of_another_plugin_is_found_by_name() -> None:
    from assay.testing.optimizer_suite import batch_of

    context = BuildContext(parts={("shaper", "halved"): Part("shaper", "halved", Halved, lambda options: options)})
    component = COMPONENTS["dr_grpo"]
    made = component.build(component.config(shaping=["halved"]), context)
    prepared = made.prepare(batch_of([1, 0], [1, 1]))
    assert prepared.advantage is not None
    assert [float(value) for value in prepared.advantage] == [0.25, -0.25]


class Cubic(Options):
    """A link of another plugin."""

    def loss(self, margin: object) -> object:
        return margin


def test_a_link_of_another_plugin_is_found_by_name() -> None:
    component = {found.name: found for found in assay_objectives()}["psipo"]
    context = BuildContext(parts={("link", "cubic"): Part("link", "cubic", Cubic, lambda options: options)})
    assert component.build(component.config(link="cubic"), context).kind == "preference"
    with pytest.raises(ConfigError, match=r"objective.link.use: no link named 'cubic'; known: hinge, logistic, square"):
        component.build(component.config(link="cubic"), BuildContext())


def test_names_are_unique_and_every_part_says_what_it_is() -> None:
    parts = list(assay_optimizer_parts())
    assert len({(part.axis, part.name) for part in parts}) == len(parts)
    assert all(part.summary and part.config.__doc__ for part in parts)
    assert len(COMPONENTS) == len(list(assay_policy_optimizers())) == len(PRESETS) + 1


def test_every_option_has_a_sentence() -> None:
    models = [part.config for part in assay_optimizer_parts()]
    models += [component.config for component in assay_objectives()]
    models += [component.config for component in COMPONENTS.values()]
    for model in models:
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name} has no description"


def test_every_optimizer_fills_the_composition_table() -> None:
    for component in COMPONENTS.values():
        assert tuple(component.facts) == COLUMNS
        assert all(component.facts.values())
    assert COMPONENTS["ppo"].facts["critic"] == "yes"
    assert COMPONENTS["rto"].facts["models resident"] == "policy, reference, critic, dpo"
    assert COMPONENTS["scalerl"].facts["ratio"] == "token:gen"
    assert COMPONENTS["grpo"].facts["KL"] == "kl k3 0.04"
    assert COMPONENTS["rto"].facts["KL"] == "k1 in reward 0.01"
    assert COMPONENTS["disco"].facts["KL"] == "squared_hinge_kl 1000 0.0001"
    assert COMPONENTS["repo"].facts["models resident"] == "policy, reference, critic, cost critic"
