"""Changed fields in JSON: only the bytes of their values differ, order, spacing and spelling of all else stay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.redaction.json_edit import edit_json
from diamant.cleaner.values.edits import DEFAULT, EMPTY, GIVEN, NULL, TEXT, NewValue, Unchangeable, texts_in
from tests.cleaner.values.changed_fields import TOKEN, changed, is_for_items, paths
from tests.effort import examples

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
STYLES = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 0, 2, "\t"]),
        "separators": st.sampled_from([(",", ":"), (" , ", " : "), (",\r\n", ":\t")]),
    }
)


def edited(data: bytes, path: list[str], new: NewValue) -> bytes:
    after, _ = edit_json(data, tuple(path), new)
    again, edits = edit_json(after, tuple(path), new)
    assert (again, [one for one in edits if one.old is not None]) == (after, [])
    return after


def empty(old: Any) -> Any:
    return None if old is None else type(old)()


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), VALUES, STYLES, st.sampled_from([NULL, EMPTY, TEXT]))
def test_random_values_differ_in_the_named_fields_alone(data: st.DataObject, value: Any, style: Any, kind: str) -> None:
    """The result is the text that the same style gives to the changed value, byte for byte."""
    check_random_json(data, value, style, kind)


def check_random_json(data: st.DataObject, value: Any, style: Any, kind: str) -> None:
    path = data.draw(paths(value))
    if not path:
        return
    new = NewValue(kind, TOKEN if kind == TEXT else "")
    wanted = {NULL: lambda _old: None, EMPTY: empty, TEXT: lambda _old: TOKEN}[kind]
    after = edited(json.dumps(value, **style).encode(), path, new)
    expected = changed(value, path, wanted, in_lists=is_for_items(new))
    # 0.0 and 0 are the same empty number.
    assert after.replace(b"0.0", b"0") == json.dumps(expected, **style).encode().replace(b"0.0", b"0")


@pytest.mark.parametrize(
    ("before", "path", "new", "after"),
    [
        (b'{"a":1,"a":{"b":2},"a":[{"b":3}]}', "a.b", NewValue(NULL), b'{"a":1,"a":{"b":null},"a":[{"b":null}]}'),
        (b'\xef\xbb\xbf{"\\u0061": "\xc3\xbc"}\n', "a", NewValue(NULL), b'\xef\xbb\xbf{"\\u0061": null}\n'),
        (b'{"a": NaN, "b": [1, "x\ty"]}', "b", NewValue(TEXT, "\u00fc\""), b'{"a": NaN, "b": ["\xc3\xbc\\"", "\xc3\xbc\\""]}'),
        (b'{"a": -Infinity}', "a", NewValue(EMPTY), b'{"a": 0}'),
        (b'{"a": 1e999999999}', "a", NewValue(EMPTY), b'{"a": 0}'),
        (b'{"a": "x"}', "a", NewValue(GIVEN, '{"b": [1.50]}'), b'{"a": {"b": [1.50]}}'),
        (b'[[{"a": {}}], {"a": [[]]}, 7]', "a", NewValue(NULL), b'[[{"a": null}], {"a": null}, 7]'),
        (b'{"a": [[1, []], {"b": 2}]}', "a", NewValue(TEXT, "x"), b'{"a": [["x", []], "x"]}'),
        (b'{"a": {"b": 1}}', "b", NewValue(NULL), b'{"a": {"b": 1}}'),
        (b'{"a": "{not JSON"}', "a.b", NewValue(NULL), b'{"a": "{not JSON"}'),
        (b'{"a": "{\\"c\\": 1}"}', "a.b", NewValue(NULL), b'{"a": "{\\"c\\": 1}"}'),
        (b'{"a": "{\\"b\\": 1}"}', "a", NewValue(NULL), b'{"a": null}'),
    ],
)  # fmt: skip
def test_odd_names_and_values_are_edited(before: bytes, path: str, new: NewValue, after: bytes) -> None:
    """Names that occur twice or are escaped, a byte order mark, control characters, numbers of any size, nested lists."""
    assert edited(before, path.split("."), new) == after


@pytest.mark.parametrize(
    ("data", "path", "new"),
    [
        (b'{"a": "{\\"b\\": 1}"}', "a.b", NewValue(NULL)),
        (b'{"a": [{"b": 1}, "[{\\"b\\": 1}]"]}', "a.b", NewValue(NULL)),
        (b'{"a": 1}', "a", NewValue(DEFAULT)),
    ],
)
def test_fields_that_cannot_change(data: bytes, path: str, new: NewValue) -> None:
    """The path leads through a text that is JSON itself; JSON has no schema with a default."""
    with pytest.raises(Unchangeable):
        edit_json(data, tuple(path.split(".")), new)


def test_the_texts_that_are_lost_are_known_as_they_are_and_as_they_were_written() -> None:
    """Both are searched for everywhere."""
    _, edits = edit_json(b'{"a": "Z\\u00fcrich", "b": 1}', ("a",), NewValue(NULL))
    assert sorted(texts_in([one.old for one in edits])) == [b"Z\\u00fcrich", "Z\u00fcrich".encode()]
