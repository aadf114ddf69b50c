"""Values that cross the border of a jail."""

import json
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.tagged import MAX_HASHED, Opaque, TaggedError, decode, encode

LARGE = st.integers(min_value=1 << 60, max_value=1 << 80)
TEXTS = st.text() | st.binary()
SCALARS = st.none() | st.booleans() | st.integers() | LARGE | st.floats(allow_nan=False) | TEXTS
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=12,
)


def _types(value: Any) -> Any:
    if isinstance(value, list | tuple):
        items = list[Any](cast("Any", value))
        return type(cast("Any", value)), [_types(each) for each in items]
    return cast("Any", type(value))


@given(VALUES)
def test_plain_values_come_back_equal_and_of_the_same_types(value: Any) -> None:
    text = encode(value)
    assert text.isascii()
    back = decode(text)
    assert back == value
    assert _types(back) == _types(value)


@given(st.text() | st.binary())
def test_any_text_is_a_value_or_a_tagged_error(text: str | bytes) -> None:
    try:
        decode(text)
    except TaggedError:
        return


@given(
    st.recursive(
        st.none() | st.text(max_size=5), lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from("tvx"), x)
    )
)
def test_any_json_is_a_value_or_a_tagged_error(tree: Any) -> None:
    try:
        decode(json.dumps(tree))
    except TaggedError:
        return


def test_collections_are_taken_as_their_plain_kin() -> None:
    values: list[object] = [Counter("aab"), defaultdict(int, {"a": 2, "b": 1}), OrderedDict(a=2, b=1)]
    for value in values:
        assert decode(encode(value)) == {"a": 2, "b": 1}
    assert decode(encode(deque([1, 2]))) == [1, 2]


def test_subclasses_and_foreign_objects_equal_nothing() -> None:
    class Sly(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    for value in (Sly(4), object(), lambda: 4, type("T", (), {})):
        back = decode(encode(value))
        assert isinstance(back, Opaque)
        assert back != 4
        assert not back == back  # noqa: SIM201 - that is the point


def test_plain_types_cross_by_name() -> None:
    assert decode(encode([int, float, dict])) == [int, float, dict]


def test_nan_is_only_a_tag() -> None:
    assert encode(float("nan")) == '{"t":"float","v":"nan"}'
    with pytest.raises(TaggedError, match="NaN"):
        decode("NaN")


def test_depth_size_and_hashed_elements_are_capped() -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(TaggedError, match="nested deeper"):
        encode(deep)
    with pytest.raises(TaggedError, match="bytes"):
        encode("x" * (2 << 20))
    with pytest.raises(TaggedError, match="more than"):
        decode(json.dumps({"t": "set", "v": list(range(MAX_HASHED + 1))}))
    with pytest.raises(TaggedError):
        decode("[" * 100_000)


def test_a_number_with_too_many_digits_for_python_crosses() -> None:
    assert decode(encode(1 << 100_000)) == 1 << 100_000
