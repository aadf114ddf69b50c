"""Tokens come from the environment; what no header can carry is refused in a sentence that does not show it."""

import pytest

from assay.errors import ConfigError
from assay.tokens import read_token


def test_a_token_is_read_and_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "sk-1234")
    token = read_token("A_TOKEN", where="judge: token_env")
    assert token is not None
    assert token.get_secret_value() == "sk-1234"
    assert "1234" not in f"{token!r} {token}"
    assert read_token(None, where="judge: token_env") is None


@pytest.mark.parametrize("value", ["sk-1234\n", " sk-1234", "sk 1234", "sk-1234\r\nX-Other: 1", "sk-1234\u00f6", ""])
def test_what_is_no_token_is_one_sentence_that_does_not_show_it(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", value)
    with pytest.raises(ConfigError, match="judge: token_env: the environment variable 'A_TOKEN'") as caught:
        read_token("A_TOKEN", where="judge: token_env")
    assert "1234" not in str(caught.value)
    assert "\n" not in str(caught.value)
