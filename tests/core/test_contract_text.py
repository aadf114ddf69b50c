"""Text in contracts can always be stored: lone surrogates become U+FFFD, everything else stays as it is."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from assay import Message, Turn
from assay.rows import Row, read_rows


@given(st.text(alphabet=st.characters(categories=["L", "Cs", "P", "Z"])))
def test_a_turn_and_a_message_survive_json(text: str) -> None:
    turn, message = Turn(text=text), Message(role="user", content=text)
    assert Turn.model_validate_json(turn.model_dump_json()) == turn
    assert message.content == turn.text


@given(st.text())
def test_ordinary_text_is_untouched(text: str) -> None:
    assert Turn(text=text).text == text


def test_lone_surrogates_become_the_replacement_character_and_pairs_are_joined() -> None:
    assert Turn(text="a\ud800b\udfff").text == "a\ufffdb\ufffd"
    assert Turn(text="\ud83d\ude00").text == "\U0001f600"


def test_escapes_of_lone_surrogates_in_a_file_become_the_replacement_character(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    line = r'{"answer": "\ud800", "pair": "\uD83D\uDE00", "n": 1.5, "deep": [{"\udfff": "\\ud800"}]}'
    file.write_text(line, "utf-8")
    (row,) = read_rows(file)
    assert isinstance(row, Row)
    assert row.data == {"answer": "\ufffd", "pair": "\U0001f600", "n": 1.5, "deep": [{"\ufffd": "\\ud800"}]}
