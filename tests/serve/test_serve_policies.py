"""The bounded queue, which is pure, and what an operator may choose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import ConfigError
from assay.serve.admission import LONGEST_RETRY_S, Admission
from assay.serve.settings import client_token, is_loopback


@given(
    queue=st.integers(1, 20),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 25), st.floats(0, 5)), max_size=60),
)
def test_never_more_than_the_queue_is_held_and_a_refusal_has_a_time(
    queue: int, moves: list[tuple[bool, int, float]]
) -> None:
    admission = Admission(queue)
    held: list[int] = []
    now = 0.0
    for enters, items, pause in moves:
        now += pause
        if not enters:
            if held:
                admission.done(held.pop(), now)
        elif admission.admit(items):
            held.append(items)
        else:
            assert sum(held) + items > queue
            assert 1 <= admission.retry_after_s(items, now) <= LONGEST_RETRY_S
        assert admission.held == sum(held) <= queue


def test_the_time_to_come_again_follows_the_pace_of_the_answers():
    admission = Admission(10)
    assert admission.admit(10)
    assert admission.retry_after_s(4, now=0.0) == 1  # nothing is known yet
    admission.done(1, now=0.0)
    admission.done(1, now=2.0)
    assert admission.admit(2)
    assert admission.retry_after_s(4, now=4.0) == 8  # 2 items in 4 s; 4 are too many
    assert admission.retry_after_s(4, now=4000.0) == LONGEST_RETRY_S


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("example.org", False),
    ],
)
def test_addresses_that_others_can_reach_need_a_token(
    host: str, only_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_loopback(host) is only_here
    monkeypatch.setenv("A_TOKEN", "s3cret")
    assert client_token("A_TOKEN", host=host) == "s3cret"
    if only_here:
        assert client_token(None, host=host) is None
        return
    with pytest.raises(ConfigError, match=r"others can reach this address, so a token is needed.*--token-env"):
        client_token(None, host=host)


def test_a_token_must_be_set_and_must_fit_into_a_header(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="--token-env: the environment variable 'NO_SUCH_TOKEN' is not set or empty"):
        client_token("NO_SUCH_TOKEN", host="127.0.0.1")
    for wrong in ("two words", "schlüssel", "a\tb"):
        monkeypatch.setenv("A_TOKEN", wrong)
        with pytest.raises(
            ConfigError,
            match="'A_TOKEN' holds no token: found a space, a line end or another sign than printable ASCII",
        ):
            client_token("A_TOKEN", host="127.0.0.1")
