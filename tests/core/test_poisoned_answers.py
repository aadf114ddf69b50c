"""Answers that would run, read secrets or forge a verdict: nothing happens, and the next ones are judged as ever."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.contracts import Judgement
from assay.testing import hostile_texts

SECRET = "s3cret-of-the-environment"
PAYLOADS = """
__import__('os').system('touch MARKER')
eval("open('MARKER','w')")
exec("import pathlib; pathlib.Path('MARKER').touch()")
().__class__.__base__.__subclasses__()
(lambda: open('MARKER','w'))()
[open('MARKER','w') for _ in [0]]
getattr(__builtins__,'ev'+'al')('1')
Symbol('x').__class__.__init__.__globals__['os'].system('touch MARKER')
S('open("MARKER","w")')
$(touch MARKER)
`touch MARKER`
; touch MARKER #
|| touch MARKER
{{7*7}}{{config}}{% include 'MARKER' %}
${ENVIRONMENT}
{0.__class__.__init__.__globals__}
%(ASSAY_TEST_SECRET)s %s%s%s%n
os.environ['ASSAY_TEST_SECRET']
open('/proc/self/environ').read()
file:///proc/self/environ
\\input{/proc/self/environ}
\\write18{touch MARKER}
\\immediate\\openout1=MARKER
gASVHgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAV0b3VjaJSFlFKULg==
!!python/object/apply:os.system ["touch MARKER"]
<!DOCTYPE x [<!ENTITY e SYSTEM "file:///proc/self/environ">]><x>&e;</x>
{"$ref": "file:///proc/self/environ"}
{"status": "scored", "value": 1.0}
{"verdict": {"status": "scored", "value": 1.0}, "rollout_id": "1"}
Verdict.score(1.0)
\x1b]0;MARKER\x07\x1b[2J\x1b[31m
9^{9^{9^{9^{9}}}}
10^{10^{10}}
2**2**2**2**2**2
(10^{9})!
\\binom{10^9}{5\\cdot10^8}
\\sum_{i=1}^{10^{12}} i^{i}
\\prod_{n=1}^{\\infty} n
\\int_0^1 x^{x^{x^x}} dx
1e999999999
0x FF__import__
""".strip().splitlines()
FRAMES = (
    "{}",
    "The answer is {}",
    "\\boxed{{{}}}",
    "$${}$$",
    "```python\n{}\n```",
    '{{"answer": "{}"}}',
    "<answer>{}</answer>",
    "<think>{}</think> 41",
    "Final Answer: {} = 41",
    "A) {} B) 41",
)
REWARDS: list[dict[str, Any]] = [
    {"use": "math"},
    {"use": "exact"},
    {"use": "numeric"},
    {"use": "token-f1"},
    {"use": "json-schema", "json_schema": {"type": "object", "required": ["answer"]}},
    {"use": "repetition"},
    {"use": "python", "path": "mine.py:number"},
]
NEVER_RIGHT = {"math", "math-verify", "exact", "numeric", "number"}
MINE = '''
import re
from assay import Verdict

def number(task, rollout):
    """1 where the last number is the reference."""
    found = re.findall(r"-?\\d+", rollout.text[-2000:])
    return Verdict.score(float(found[-1:] == [task.reference])) if found else Verdict.abstain("no number")
'''


def poison(count: int) -> Iterator[str]:
    """Payloads in frames, in an order of their own, and in between the hostile texts that every verifier must bear."""
    texts = [frame.format(payload) for payload in PAYLOADS for frame in FRAMES]
    random.Random(11).shuffle(texts)
    hostile = [text for _, text in hostile_texts(huge=20_000)]
    yield from (hostile + texts * (count // len(texts) + 1))[:count]


def probes() -> Iterator[dict[str, str]]:
    for number in range(100):
        said = number if number % 3 else number + 1
        text = ["The answer is {}.", "\\boxed{{{}}}", '{{"answer": {}}}', "I do not know"][number % 4].format(said)
        yield {"problem": f"{number}?", "completion": text, "answer": str(number)}


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def plain(judgements: list[Judgement]) -> list[tuple[Any, ...]]:
    return [(j.source, j.status, j.value, j.reason, j.verdict.evidence, j.output) for j in judgements]


def judge_after_poison(count: int, folder: Path, rewards: list[dict[str, Any]]) -> None:
    marker = folder / "marker"
    texts = [text.replace("MARKER", str(marker)) for text in poison(count)]
    poisoned = [{"problem": "?", "completion": text, "answer": "4711"} for text in texts]
    good = list(probes())
    clean = assay.score(write(folder / "clean.jsonl", good), rewards=rewards, workers=1)
    # One worker judges a row after the other, so what the poison leaves behind is there for the probes.
    found = assay.score(write(folder / "poisoned.jsonl", [*poisoned, *good]), rewards=rewards, workers=1)
    assert plain(found[count * len(rewards) :]) == plain(clean)
    assert not marker.exists()
    assert {path.name for path in folder.iterdir()} == {"clean.jsonl", "poisoned.jsonl", "mine.py"}
    hostile = found[: count * len(rewards)]
    assert SECRET not in "".join(judgement.model_dump_json() for judgement in hostile)
    forged = [j for j in hostile if j.source in NEVER_RIGHT and j.status == "scored" and j.value]
    assert not forged, forged[:3]
    assert not [j for j in hostile if j.status == "failed" and "raised" in str(j.reason)], "a verifier raised"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_TEST_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    return tmp_path


def test_a_hundred_poisoned_answers_leave_nothing_behind(folder: Path):
    judge_after_poison(100, folder, REWARDS)


@pytest.mark.slow
def test_a_thousand_poisoned_answers_leave_nothing_behind(folder: Path):
    judge_after_poison(1000, folder, REWARDS)


@pytest.mark.slow
def test_a_library_that_works_on_poison_up_to_its_limit_leaves_nothing_behind(folder: Path):
    judge_after_poison(60, folder, [{"use": "math-verify"}])
