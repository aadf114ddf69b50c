"""Steps of a text: the pieces tile it, protected regions stay whole, blank stretches are no step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.steps import SplitterOptions, join_steps, protected_ranges, split_steps, step_spans


def texts(text: str, **options: str) -> list[str]:
    return [text[span.start : span.end] for span in step_spans(text, SplitterOptions.model_validate(options))]


PIECES = (
    "\n", "\n\n", " ", "word", "B.", "!", "Step 1: ", "Step 2: ", "1. ", "2. ", "```\n", "$$", "\\[", "\\]", "| a |",
    "e.g. ", "é", "|",
)  # fmt: skip
SOUP = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
WAYS = [{}, {"by": "line"}, {"by": "numbered"}, {"by": "sentence"}, {"separator": "\n\n"}, {"separator": "."}]


@pytest.mark.parametrize("options", WAYS, ids=str)
@given(text=SOUP)
def test_the_pieces_tile_the_text_and_no_step_is_blank(options: dict[str, str], text: str) -> None:
    pieces = split_steps(text, SplitterOptions.model_validate(options))
    if not text.strip():
        assert pieces == ()
    if not pieces:
        return
    assert "".join(text[piece.begin : piece.stop] for piece in pieces) == text
    protected = protected_ranges(text)
    for piece in pieces:
        step = text[piece.start : piece.end]
        assert step == step.strip() != ""
        assert all(piece.stop <= first or piece.stop >= last for first, last in protected)
        assert piece.begin <= piece.start < piece.end <= piece.stop


def test_a_trailing_blank_line_is_no_step() -> None:
    assert texts("one\n\ntwo\n\n\n") == ["one", "two"]
    assert texts("\n\n one \n \t\n\n two") == ["one", "two"]


def test_numbered_steps_count_upwards() -> None:
    text = "Intro.\nStep 1: add\n2010. was a year\nStep 2: double\n1. nested\nSo 3."
    assert texts(text, by="numbered") == [
        "Intro.", "Step 1: add\n2010. was a year", "Step 2: double\n1. nested\nSo 3."
    ]  # fmt: skip
    assert texts("1. a\n2.5 + 1 = 3.5\n2 - 2 = 0\n2. b", by="numbered") == ["1. a\n2.5 + 1 = 3.5\n2 - 2 = 0", "2. b"]
    assert texts("STEP 1: a\nSTEP 2: b", by="numbered") == ["STEP 1: a", "STEP 2: b"]
    assert texts("1. a\n2) b\n7. c", by="numbered") == ["1. a", "2) b\n7. c"]


def test_sentences_keep_numbers_and_abbreviations_whole() -> None:
    assert texts("We get 3.5 m, e.g. here. Then stop! Done", by="sentence") == [
        "We get 3.5 m, e.g. here.", "Then stop!", "Done"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "block",
    [
        "```python\na\n\nb\n```",
        "$$\na\n\n=b\n$$",
        "\\[\na\n\nb\n\\]",
        "\\begin{align}\na\n\nb\n\\end{align}",
        "| a |\n| - |\n| b |",
        "~~~\nx\n\n```\n\ny\n~~~",
    ],
)
@pytest.mark.parametrize("by", ["blank_line", "line", "sentence"])
def test_no_cut_inside_fences_maths_environments_and_tables(block: str, by: str) -> None:
    assert texts(f"before\n\n{block}\n\nafter", by=by) == ["before", block, "after"]


def test_an_open_fence_reaches_to_the_end_and_open_maths_protects_nothing() -> None:
    assert texts("a\n\n```\nb\n\nc") == ["a", "```\nb\n\nc"]
    assert texts("costs $$ 3\n\nb \\[ c\n\nd") == ["costs $$ 3", "b \\[ c", "d"]


def test_a_separator_is_literal_and_fuses_nothing() -> None:
    assert texts("a .* b.*c", separator=".*") == ["a", "b", "c"]
    assert texts("a ки\nb ки", separator="ки") == ["a", "b"]


def test_given_steps_are_found_again_where_they_were_put() -> None:
    text, spans = join_steps(["one ", " two\n\nand more", "three"])
    assert [text[span.start : span.end] for span in spans] == ["one", "two\n\nand more", "three"]


def test_options_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match='separator is for by = "separator"; found by = "line"'):
        SplitterOptions(by="line", separator="x")
    with pytest.raises(ValueError, match="needs the text that stands between steps"):
        SplitterOptions(by="separator")


def test_hostile_texts_of_open_beginnings_are_cut_too() -> None:
    for unit in ("\\[", "$$", "\\begin{a}", "```\n", "| a\n", "1. ", "a. ", "\n \n", "Step 1: "):
        for by in ("blank_line", "line", "numbered", "sentence"):
            pieces = split_steps("x" + unit * 20_000, SplitterOptions(by=by))
            assert pieces[-1].stop == 1 + len(unit) * 20_000


@pytest.mark.parametrize(
    "options",
    [*(SplitterOptions(by=by) for by in ("blank_line", "line", "sentence")), SplitterOptions(separator=" ## ")],
)
def test_given_steps_are_found_again(options: SplitterOptions) -> None:
    steps = ["First we add.", "Then we halve.", "So it is 3."]
    text, spans = join_steps(steps, options.between)
    assert step_spans(text, options) == spans
    assert [text[span.start : span.end] for span in spans] == steps
