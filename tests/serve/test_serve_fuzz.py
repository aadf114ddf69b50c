"""Generated requests against the server's own description: whatever is sent, nothing is answered 5xx.

`make test` sends a hundred, `make test-slow` two thousand and more. The answers must also be of the described
statuses, types and shapes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false
# schemathesis is only partly annotated.

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.long

schemathesis: Any = pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A server with rewards that answer at once."""
    command = [sys.executable, "-m", "assay", "serve", "-r", "exact", "-r", "length:0.1", "--port", "0", "--json"]
    folder = tmp_path_factory.mktemp("fuzz")
    with (
        (folder / "said").open("w", encoding="utf-8") as said,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=said, text=True) as running,
    ):
        assert running.stdout is not None
        yield json.loads(running.stdout.readline())["url"]
        running.terminate()
        assert running.wait(timeout=60) == 0
    assert "Traceback" not in (folder / "said").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def client(url: str) -> Generator[httpx.Client]:
    """One connection, which is kept."""
    limits = httpx.Limits(keepalive_expiry=1.0)  # before the server ends a connection that waits
    with httpx.Client(base_url=url, timeout=60, limits=limits) as kept:
        yield kept


def fuzz(url: str, cases: int) -> Counter[int]:
    """Send `cases` requests, spread over the routes; the count of every status."""
    from schemathesis import checks
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks as openapi

    described = schemathesis.openapi.from_url(f"{url}/openapi.json", wait_for_schema=60)
    operations = [operation.ok() for operation in described.get_all_operations()]
    posts = [operation for operation in operations if operation.method.lower() == "post"]
    assert len(posts) == 3
    seen: Counter[int] = Counter()
    held = (
        checks.not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_schema_conformance,
    )
    for operation in operations:
        if operation not in posts:
            send(operation, GenerationMode.POSITIVE, 5, held, seen)  # nothing about it could be wrong
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            send(operation, mode, cases // (2 * len(posts)), held, seen)
    return seen


def send(operation: Any, mode: Any, count: int, held: Any, seen: Counter[int]) -> None:
    strategy = operation.as_strategy(generation_mode=mode)

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=strategy)
    def sent(case: Any) -> None:
        response = case.call(timeout=60)
        seen[response.status_code] += 1
        case.validate_response(response, checks=list(held))

    sent()


@pytest.mark.filterwarnings("ignore")
def test_a_hundred_generated_requests_and_no_5xx(url: str):
    seen = fuzz(url, 120)
    assert sum(seen.values()) >= 100
    assert seen[200] > 10
    assert seen[422] > 20
    assert not [code for code in seen if code >= 500]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
def test_two_thousand_generated_requests_and_no_5xx(url: str):
    seen = fuzz(url, 2400)
    assert sum(seen.values()) >= 2000
    assert not [code for code in seen if code >= 500]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(raw=st.binary(max_size=300), route=st.sampled_from(["/v1/score", "/openrlhf", "/slime", "/v1/sources"]))
def test_any_bytes_get_an_answer_that_is_json(client: httpx.Client, raw: bytes, route: str):
    answer = client.post(route, content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code in {405, 422}
    assert answer.json()["detail"]


def test_every_route_is_described(url: str):
    described = httpx.get(f"{url}/openapi.json", timeout=60).json()
    assert set(described["paths"]) == {"/v1/score", "/v1/sources", "/healthz", "/metrics", "/openrlhf", "/slime"}
