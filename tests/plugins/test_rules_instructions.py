"""IFEval's 25 kinds: a text that was made to follow an instruction does, and one made to break it does not."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay_rules.instruction_checks import ALIASES, CHECKS
from assay_rules.instructions import BadInstructionError, bind, resolve
from assay_rules.prose import detect_language, script_share, sentences

WORDS = st.lists(
    st.sampled_from(["the", "cat", "sat", "on", "a", "mat", "while", "rain", "fell", "and", "wind", "blew"]),
    min_size=1,
    max_size=40,
)
COUNT = st.integers(1, 6)


def follows(name: str, text: str, **kwargs: object) -> bool:
    bound = bind(name, kwargs)  # pyright: ignore[reportArgumentType]  # plain JSON
    return bound.check(text, **bound.kwargs).followed


@given(WORDS, st.integers(0, 45))
def test_words_are_counted(words: list[str], wanted: int) -> None:
    text = ", ".join(words) + "!"
    assert follows("number_words", text, num_words=wanted, relation="at least") == (len(words) >= wanted)
    assert follows("number_words", text, num_words=wanted, relation="less than") == (len(words) < wanted)


@given(st.lists(WORDS, min_size=1, max_size=6), st.integers(1, 7), st.sampled_from(".!?"))
def test_sentences_are_counted(parts: list[list[str]], wanted: int, mark: str) -> None:
    text = " ".join(" ".join(words).capitalize() + " x" + mark for words in parts)
    assert follows("number_sentences", text, num_sentences=wanted, relation="at least") == (len(parts) >= wanted)


def test_abbreviations_decimals_and_initials_end_no_sentence() -> None:
    text = 'Dr. J. Smith paid 3.50 dollars, i.e. little, at 5 p.m. on Monday. He left! Did he? "Yes," she said...'
    assert len(sentences(text)) == 4
    assert len(sentences("No mark at all")) == 1
    assert len(sentences("He said no. Then he saw No. 5 at 5 p.m. Nobody spoke.")) == 3
    assert len(sentences("\u4f60\u597d\u3002\u6211\u5f88\u597d\u3002")) == 2


@given(COUNT, COUNT)
def test_structure_is_counted(made: int, wanted: int) -> None:
    bullets = "Intro\n" + "\n".join(f"* item {index}" for index in range(made)) + "\n---\n**bold** end"
    assert follows("number_bullet_lists", bullets, num_bullets=wanted) == (made == wanted)
    paragraphs = "\n***\n".join(f"text {index}" for index in range(made))
    assert follows("number_paragraphs", paragraphs, num_paragraphs=wanted) == (made == wanted)
    highlights = " and ".join(f"*part {index}*" for index in range(made))
    assert follows("number_highlighted_sections", highlights, num_highlights=wanted) == (made >= wanted)
    placeholders = " ".join(f"[field {index}]" for index in range(made))
    assert follows("number_placeholders", placeholders, num_placeholders=wanted) == (made >= wanted)
    sections = "\n".join(f"SECTION {index + 1}\nSome text." for index in range(made))
    assert follows("multiple_sections", sections, section_spliter="SECTION", num_sections=wanted) == (made >= wanted)
    assert not follows("multiple_sections", sections, section_spliter="Section", num_sections=wanted)
    capitals = "small " + " ".join(["LOUD"] * made)
    assert follows("capital_word_frequency", capitals, capital_frequency=wanted) == (made >= wanted)


@given(st.text(alphabet="abc+#.*(", min_size=1, max_size=5), COUNT, COUNT)
def test_keywords_are_literal_whole_words(keyword: str, made: int, wanted: int) -> None:
    text = "begin " + " ".join([keyword.upper()] * made) + " end"
    assert follows("keyword_frequency", text, keyword=keyword, frequency=wanted, relation="at least") == (
        made >= wanted
    )
    assert follows("existence", text, keywords=[keyword])
    assert not follows("forbidden_words", text, forbidden_words=["other", keyword])
    glued = f"begin x{keyword}x end"
    if re.fullmatch(r"\w.*\w|\w", keyword):
        assert not follows("existence", glued, keywords=[keyword])


@given(st.text(max_size=60))
def test_no_check_raises_on_any_text_and_commas_and_case_are_exact(text: str) -> None:
    arguments: dict[str, dict[str, object]] = {
        "keywords:existence": {"keywords": ["x"]},
        "keywords:frequency": {"keyword": "x", "frequency": 1},
        "keywords:forbidden_words": {"forbidden_words": ["x"]},
        "keywords:letter_frequency": {"letter": "x", "let_frequency": 1},
        "length_constraints:number_sentences": {"num_sentences": 1},
        "length_constraints:number_paragraphs": {"num_paragraphs": 1},
        "length_constraints:number_words": {"num_words": 1},
        "length_constraints:nth_paragraph_first_word": {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "x"},
        "detectable_content:number_placeholders": {"num_placeholders": 1},
        "detectable_content:postscript": {"postscript_marker": "P.S."},
        "detectable_format:number_bullet_lists": {"num_bullets": 1},
        "detectable_format:number_highlighted_sections": {"num_highlights": 1},
        "detectable_format:multiple_sections": {"section_spliter": "x", "num_sections": 1},
        "combination:repeat_prompt": {"prompt_to_repeat": "x"},
        "startend:end_checker": {"end_phrase": "x"},
        "change_case:capital_word_frequency": {"capital_frequency": 1},
        "language:response_language": {"language": "en"},
    }
    assert len(CHECKS) == 25
    for name in CHECKS:
        follows(name, text, **arguments.get(name, {}))
    assert follows("no_comma", text.replace(",", "").replace("\uff0c", "").replace("\u060c", "").replace("\u3001", ""))
    assert not follows("no_comma", text + ",")
    assert not follows("all_caps", text + "a")
    assert not follows("lowercase", text + "A")


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("no_such", {}, "no instruction named 'no_such'"),
        ("number_word", {}, "Did you mean 'number_words'"),
        ("number_words", {}, "the argument 'num_words' is missing"),
        ("number_words", {"num_words": "5"}, "expected a whole number"),
        ("number_words", {"num_words": True}, "expected a whole number"),
        ("number_words", {"num_words": -1}, "expected a whole number"),
        ("number_words", {"num_words": 5, "relation": "around"}, "expected one of at least"),
        ("number_words", {"num_words": 5, "relatoin": "at least"}, "Did you mean 'relation'"),
        ("existence", {"keywords": []}, "expected a list of texts"),
        ("existence", {"keywords": "word"}, "expected a list of texts"),
        ("end_phrase", {"end_phrase": " "}, "expected a text"),
    ],
)
def test_wrong_arguments_are_told_in_one_sentence(name: str, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(BadInstructionError, match=message):
        bind(name, kwargs)  # pyright: ignore[reportArgumentType]  # wrong on purpose


def test_every_alias_names_a_kind() -> None:
    assert {resolve(alias) for alias in ALIASES} <= set(CHECKS)
    assert all(resolve(full.partition(":")[2]) == full for full in CHECKS)


SAMPLES = {
    "ar": "هذه جملة قصيرة عن الطقس اليوم",
    "de": "Heute scheint die Sonne und wir gehen zusammen in den Park.",
    "es": "Hoy brilla el sol y vamos a caminar juntos por el parque con los niños.",
    "fi": "Tänään paistaa aurinko ja menemme yhdessä puistoon.",
    "fr": "Aujourd'hui il fait beau et nous allons ensemble au parc.",
    "hi": "आज धूप निकली है और हम साथ में पार्क जा रहे हैं",
    "it": "Oggi c'è il sole e andiamo insieme al parco con i bambini.",
    "ja": "今日は晴れているので、公園に行きます。",
    "ko": "오늘은 날씨가 좋아서 공원에 갑니다.",
    "mr": "आज ऊन पडले आहे आणि आम्ही उद्यानात जात आहोत",
    "pt": "Hoje está sol e vamos juntos ao parque com as crianças.",
    "ru": "Сегодня светит солнце, и мы идём в парк.",
    "sw": "Leo jua linawaka na tunakwenda pamoja kwenye bustani ya watoto.",
    "vi": "Hôm nay trời nắng và chúng tôi cùng nhau đi công viên.",
    "zh": "今天天气很好，我们一起去公园玩。",
}


@pytest.mark.parametrize("code", SAMPLES)
def test_languages_are_told_apart(code: str) -> None:
    assert detect_language(SAMPLES[code]).code == code
    assert follows("response_language", SAMPLES[code], language=code)
    assert script_share(SAMPLES[code], code) > 0.8
    others: Callable[[str], bool] = lambda other: follows("response_language", SAMPLES[code], language=other)  # noqa: E731
    assert not any(others(other) for other in SAMPLES if other != code)
