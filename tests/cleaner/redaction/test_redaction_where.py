"""The language of redactions: its syntax, its meaning, and that no matching record is skipped."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.cleaner.redaction.json_path import NO, UNDECIDED, YES
from diamant.cleaner.redaction.where import MAX_BYTES, MAX_COMPARISONS, MAX_DEPTH, WhereError, parse_where
from diamant.protocol.batches.batch_records import build_batch, records_payload
from diamant.protocol.batches.header import Header, Record, parse_header

EMAIL = "ada@example.com"


def record(
    value: bytes | None = None, *, key: bytes | None = None, headers: list[tuple[str, bytes | None]] | None = None
) -> Record:
    return Record(0, 0, key, value, tuple(Header(*one) for one in headers or []))


def judge(where: str, one: Record) -> int:
    return parse_where(where).judge(one)


def is_meant(where: str, value: bytes | None, **more: Any) -> bool:
    return judge(where, record(value, **more)) == YES


@pytest.mark.parametrize(
    ("where", "key", "expected"),
    [
        ('key == "customer-42"', b"customer-42", YES),
        ('key == "customer-42"', b"customer-421", NO),
        ("key == 'plain \"text\"'", b'plain "text"', YES),
        ('key == hex:"00ff"', b"\x00\xff", YES),
        ('key == base64:"AP8="', b"\x00\xff", YES),
        ('key == hex: "00ff"', b"\x00\xfe", NO),
        ('key == "\\u00e9"', "é".encode(), YES),
        ('key == ""', b"", YES),
        ('key == ""', None, NO),
        ("key == null", None, YES),
        ("key == null", b"null", NO),
        ("key exists", b"", YES),
        ("key exists", None, NO),
        ("key.id == 42", b'{"id": 42}', YES),
    ],
)
def test_keys_are_compared_whole(where: str, key: bytes | None, expected: int) -> None:
    """Keys are compared whole, as bytes in text, hexadecimal or base64; or as JSON."""
    assert judge(where, record(b"v", key=key)) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ('header.user == "42"', True),
        ('header.user == "4"', False),
        ('header["any name"] exists', True),
        ("header.empty == null", True),
        ("header.empty exists", True),
        ('header.empty == ""', False),
        ("header.User exists", False),
        ("header.other exists", False),
    ],
)
def test_headers_match_by_name_and_value(where: str, *, expected: bool) -> None:
    """Headers match by name, or by name and value; if a name occurs twice, either counts."""
    headers = [("user", b"41"), ("user", b"42"), ("any name", b""), ("empty", None)]
    assert is_meant(where, None, headers=headers) == expected


@pytest.mark.parametrize(
    ("where", "value", "expected"),
    [
        (f'value.customer.email == "{EMAIL}"', {"customer": {"email": EMAIL}}, True),
        (f'value.customer.email == "{EMAIL}"', {"customer": {"email": EMAIL + " "}}, False),
        (f'value.customer.email == "{EMAIL}"', {"email": EMAIL}, False),
        (f'value.customer.email == "{EMAIL}"', {"customer": {"email": [["x"], [EMAIL]]}}, True),
        (f'value.items.to == "{EMAIL}"', {"items": [{"to": "x"}, {"to": EMAIL}]}, True),
        (f'value.items.to == "{EMAIL}"', [{"items": [{"to": EMAIL}]}], True),
        (f'value["e-mail"].x == "{EMAIL}"', {"e-mail": {"x": EMAIL}}, True),
        (f'value.e-mail == "{EMAIL}"', {"e-mail": EMAIL}, True),
        ("value.n == 42", {"n": 42.0}, True),
        ("value.n == 42.50", {"n": 42.5}, True),
        ("value.n == 42", {"n": "42"}, False),
        ('value.n == "42"', {"n": 42}, False),
        ("value.n == 1", {"n": True}, False),
        ("value.n == true", {"n": True}, True),
        ("value.n == true", {"n": 1}, False),
        ("value.n == null", {"n": None}, True),
        ("value.n == null", {}, False),
        ("value.n exists", {"n": None}, True),
        ("value.n exists", {"n": []}, True),
        ("value.n exists", {"m": {"n": 1}}, False),
        ("value.n.m exists", {"n": [1, {"m": 2}]}, True),
        ("value.0 exists", ["x"], False),
    ],
)
def test_paths_into_json(where: str, value: Any, *, expected: bool) -> None:
    """Steps are names, and lists are searched; types matter, but the notation of a number does not."""
    assert is_meant(where, json.dumps(value).encode()) == expected
    assert is_meant(where, b"\xef\xbb\xbf" + json.dumps(value).encode()) == expected
    assert is_meant(where, b"\0\0\0\0\7" + json.dumps(value).encode()) == expected


@pytest.mark.parametrize(
    ("where", "value", "expected"),
    [
        (f'value.email == "{EMAIL}"', b'{"email": "ada\\u0040example.com"}', YES),
        (f'value.email == "{EMAIL}"', b'{"\\u0065mail": "ada@example.com"}', YES),
        (f'value.email == "{EMAIL}"', b'{"email": "someone else", "email": "ada@example.com"}', YES),
        (f'value.email == "{EMAIL}"', b'{"email": "ada@example.com", "email": "someone else"}', YES),
        ('value.url == "http://example.com/"', b'{"url": "http:\\/\\/example.com\\/"}', YES),
        ('value["a\\"b"] exists', b'{"a\\"b": 1}', YES),
        ('value.a == "😀"', b'{"a": "\\ud83d\\uDE00"}', YES),
        ('value.a == "😀"', b'{"a": "\\ud83d\\uDE00"} x', UNDECIDED),
        ('value.a == "😀"', '{"a": "😀"}'.encode("utf-16"), UNDECIDED),
    ],
)
def test_however_json_writes_it(where: str, value: bytes, expected: int) -> None:
    """Escapes, also of a slash or in surrogate pairs, are equal to their characters; of a repeated name every value counts."""
    assert judge(where, record(value)) == expected


def test_bytes_that_are_not_json_are_undecided_only_with_the_texts() -> None:
    """Bytes that are not JSON do not match, unless they contain all texts of the comparison."""
    where = f'value.email == "{EMAIL}"'
    assert judge(where, record(b"email: " + EMAIL.encode())) == UNDECIDED
    assert judge(where, record(b'{"email": "' + EMAIL.encode())) == UNDECIDED
    assert judge(where, record(b"\x00\\u\xff")) == NO
    assert judge(where, record(EMAIL.encode())) == NO
    deep = b"[" * 100_000 + b'"email", "ada@example.com"'
    assert judge(where, record(deep)) == UNDECIDED
    assert judge("value.n == 42", record(b'{"n": 1e99999999999999999999}')) == NO


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"name": "M\\u00fcller", "score": NaN}', YES),
        (b'{"name": "M\\u00FCller", "score": -Infinity}', YES),
        (b'{"name": "M\\u00fcller"} {"name": "x"}', UNDECIDED),
        (b'{"name": "x"}\n{"name": "M\\u00FCller"}', UNDECIDED),
        (b'{"n\\u0061me": "M\\u00fcller"} trailing', UNDECIDED),
        (b'{"name": "M\\u00fcller"', UNDECIDED),
        (b'{"name": "M\\u00fcller", \xff}', UNDECIDED),
        (b"{'name': 'M\\xfcller'}", UNDECIDED),
        (b"{'name': 'M\\u{fc}ller'}", UNDECIDED),
        ('{"name": "Müller"}'.encode("utf-16"), UNDECIDED),
        ('{"name": "Müller"}'.encode("utf-16-be"), UNDECIDED),
        (b"\0\0\0\0\7" + '{"name": "Müller"}'.encode("utf-16"), UNDECIDED),
        ('{"name": "M\\u00fcller"}'.encode("utf-16-le"), UNDECIDED),
        ('{"name": "Müller"}'.encode("cp1252"), UNDECIDED),
        (b"\xef\xbb\xbf" * 2 + '{"name": "Müller"}'.encode(), UNDECIDED),
        (b"[" * 100_000 + b'"name", "M\\u00fcller"', UNDECIDED),
        (json.dumps(json.dumps({"name": "Müller"})).encode(), UNDECIDED),
        (json.dumps(json.dumps(json.dumps({"name": "Müller"}))).encode() + b"]", UNDECIDED),
        (json.dumps({"name": json.dumps(["Müller"])}).encode(), UNDECIDED),
        (json.dumps({"name": "[" * 100_000 + '"M\\u00fcller"'}).encode(), UNDECIDED),
        (json.dumps({"note": json.dumps({"name": "Müller"})}).encode(), NO),
        (b"name: M\\303\\274ller", UNDECIDED),
        (b"name: M\\xc3\\xbcller", UNDECIDED),
        (b"name: M\\374ller", UNDECIDED),
        (b"name: M\\U000000fcller", UNDECIDED),
        (b'{"name": "M\\u00f6ller"} trailing', NO),
        (b'{"name": "M\\\\"} u00fcller', NO),
    ],
    ids=str,
)
def test_a_text_is_absent_only_if_no_escape_or_encoding_could_hide_it(value: bytes, expected: int) -> None:
    """A text counts as absent only if no encoding or escape in invalid JSON could hide it."""
    assert judge('value.name == "Müller"', record(value)) == expected


@pytest.mark.parametrize(
    "written",
    [
        b"ad\\a@example.com",
        b"ad\\141@example.com",
        b"ad\\U00000061@example.com",
        b"ad\\x61@example.com",
        b"\\141\\144\\141\\100example.com",
        b"ad\\\\141@example.com",
        b"ad\\134141@example.com",
        "ad\\141@example.com".encode("utf-16-le"),
    ],
    ids=repr,
)
def test_escapes_of_other_languages_hide_nothing(written: bytes) -> None:
    """Octal, long and needless escapes are resolved, in a value that is not JSON and in the bytes of a batch."""
    where = f'value.email == "{EMAIL}"'
    name = "email: ".encode("utf-16-le") if b"\0" in written else b"email: "
    assert judge(where, record(name + written)) == UNDECIDED
    assert parse_where(where).may_be_in(name + written)
    assert judge(where, record(name + written.replace(b"e", b"f"))) == NO


@pytest.mark.parametrize("text", ["customer-42", "ada@example.com", "+41791234567", "4711"])
def test_a_large_batch_without_the_text_is_passed_over(text: str) -> None:
    """Although its lengths and deltas have a byte that is a backslash, and although values could be Avro."""
    records = [record(b'{"customer": "bob-%d", "n": %d}' % (at, at), key=b"k%015d" % at) for at in range(500)]
    batch = build_batch([one._replace(offset=at) for at, one in enumerate(records)])
    payload = bytes(records_payload(batch, 0, parse_header(batch, 0)))
    assert b"\\" in payload
    where = parse_where(f'value.customer == "{text}"')
    assert not where.may_be_in(payload)
    assert where.may_be_in(payload.replace(b"bob-499", text.encode()))


@pytest.mark.parametrize("text", ["GOLD", str(UUID(int=5)), "1815-12-10", "14:22:13.5", "2023-11-14T22:13:20Z", ""])
def test_a_text_that_schemas_write_otherwise_passes_over_nothing(text: str) -> None:
    """The symbol of an enum, a UUID, a date or a time may be in any bytes of Avro or Protobuf."""
    assert parse_where(f'value.level == "{text}"').may_be_in(b"\0\0\0\0\7\2")


def test_escapes_without_end_are_not_resolved_for_ever() -> None:
    """If each escape yields another one, the result is undecided after some dozens."""
    endless = b"email: \\u005c" + b"u005c" * 100_000
    assert judge(f'value.email == "{EMAIL}"', record(endless)) == UNDECIDED
    assert judge(f'value.email == "{EMAIL}"', record(b"email: " + b"\\" * 4096)) == NO


def test_numbers_however_they_are_written() -> None:
    """JSON numbers match by value; other numbers match nothing; a value that is not JSON is undecided if it has the names."""
    for text in ("100", "1e2", "1E+2", "100.00", "0.1e3"):
        assert is_meant("value.n == 100", b'{"n": %s}' % text.encode())
    for text in ("0", "-0", "0e99999999999999999999", "0.0e-99999999999999999999"):
        assert is_meant("value.n == 0", b'{"n": %s}' % text.encode())
    assert judge("value.n == 0", record(b'{"n": 1e-99999999999999999999}')) == NO
    assert judge("value.n == 0", record(b'{"n": NaN}')) == NO
    assert judge("value.n == null", record(b'{"n": NaN}')) == NO
    assert is_meant("value.n exists", b'{"n": NaN}')
    assert judge("value.n == 42", record(b'{"n": 0x2a}')) == UNDECIDED
    assert judge("value.n == 42", record(b'{"m": 0x2a}')) == NO


def test_undecided_records_are_meant_if_that_is_stated() -> None:
    """`remove` makes undecided records match; `keep` and `hold` leave them undecided."""
    odd = record(b"email: " + EMAIL.encode())
    for undecided, expected in (("hold", UNDECIDED), ("remove", YES), ("keep", UNDECIDED)):
        assert parse_where(f'value.email == "{EMAIL}"', undecided).judge(odd) == expected
    with pytest.raises(WhereError, match="expected hold, remove or keep"):
        parse_where("key exists", "perhaps")


def test_and_binds_closer_than_or() -> None:
    """Precedence is that of Python; an undecided part makes the whole undecided only if it decides."""
    ada = record(b'{"a": 1}', key=b"k")
    for where, expected in (
        ('key == "x" and value.a == 1 or key == "k"', YES),
        ('key == "x" and (value.a == 1 or key == "k")', NO),
        ('key == "k" and value.a == 1', YES),
        ('(((key == "k")))', YES),
    ):
        assert judge(where, ada) == expected
    odd = record(b"email ada@example.com", key=b"k")
    email = f'value.email == "{EMAIL}"'
    assert judge(f'key == "k" or {email}', odd) == YES
    assert judge(f'key == "x" or {email}', odd) == UNDECIDED
    assert judge(f'key == "x" and {email}', odd) == NO
    assert judge(f'key == "k" and {email}', odd) == UNDECIDED


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("secret", "at character 1: expected key, value, header"),
        ("key", "at character 4: expected == or exists"),
        ("key = 'secret'", "at character 5: expected == or exists; there is no =: .* write == for equality"),
        ("key == 42", 'at character 8: expected "text"'),
        ("key == 'secret", 'at character 8: expected "text"'),
        ("key == 'secret' 'secret'", "at character 17: expected and, or, or the end"),
        ("key == 'secret' and", "at character 20: expected key, value, header"),
        ("(key == 'secret'", "at character 17: expected and, or, or \\)"),
        ("header == 'secret'", "at character 8: expected the name of a header"),
        ("header.a.b == hex:'00'", 'at character 15: expected "text", a number'),
        ("value. == 1", "at character 8: expected a name"),
        ("value[a] == 1", "a name in quotes and ]"),
        ("value.items[0] == 'secret'", "at character 13: expected a name in quotes; lists have no positions"),
        ("value.items[*].to == 'secret'", "lists have no positions"),
        ("value.a != 'secret'", "at character 9: expected == or exists; there is no !="),
        ("key <> 'secret'", "there is no <>"),
        ("value.a=='secret' and value.b>=1", "there is no >="),
        ("value.a == hex:'00'", 'at character 12: expected "text", a number'),
        ("value.a == 12secret", 'expected "text", a number'),
        ("key == hex:'0g secret'", "the hex text is not valid hex"),
        ("key == base64:'secret!'", "the base64 text is not valid base64"),
        ('key == "\\x secret"', "not valid JSON"),
        ("key == '\ud800secret'", "lone surrogates"),
        ('key == "\\ud800secret"', "not valid JSON"),
        ("key == '" + "secret" * MAX_BYTES + "'", "at most 65536 are allowed"),
        (" or ".join(["key == 'secret'"] * (MAX_COMPARISONS + 1)), "more than 100 comparisons"),
        ("(" * (MAX_DEPTH + 1) + "key == 'secret'" + ")" * (MAX_DEPTH + 1), "more than 32 nested parentheses"),
        ("value" + ".a" * (MAX_DEPTH + 1) + " exists", "more than 32 steps"),
    ],
)
def test_mistakes_are_reported_with_their_place_and_without_what_was_looked_for(where: str, message: str) -> None:
    """Error texts name the place, and contain nothing of the literals."""
    with pytest.raises(WhereError, match=message) as error:
        parse_where(where)
    assert "secret" not in str(error.value)
    assert str(error.value).startswith("where: ")


def test_the_shape_has_no_literals() -> None:
    """The shape has fields and operators without literals, for a certificate."""
    where = parse_where(
        'key == "a" and (value["e mail"].x == 1.50 or value.ok == true or header["b c"] == "d") and value == null'
    )
    assert (
        where.shape == 'key == ? and (value["e mail"]["x"] == ? or value.ok == ? or header["b c"] == ?) and value == ?'
    )
    assert parse_where("key exists or (value.a.b exists)").shape == "key exists or value.a.b exists"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ('key == "a"', "  key=='a' ", True),
        ('key == "a"', 'key == hex:"61"', True),
        ('key == "a"', 'key == "b"', False),
        ('key == "a"', 'value == "a"', False),
        ("key == null", "key exists", False),
        ("value.a == 42", "value.a == 42.0", True),
        ("value.a == 4200", "value.a == 42e2", True),
        ("value.a == 0", "value.a == -0.0", True),
        ("value.a == 42", 'value.a == "42"', False),
        ("value.a == 1", "value.a == true", False),
        ('value["a"] == 1', "value.a == 1", True),
        ('value["a.b"] == 1', "value.a.b == 1", False),
        ('(key == "a" and key == "b") and key == "c"', 'key == "a" and key == "b" and key == "c"', True),
        ('key == "a" and key == "b"', 'key == "a" or key == "b"', False),
        ('key == "a" and key == "b"', 'key == "b" and key == "a"', True),
        ('key == "a" and key == "a"', 'key == "a"', True),
        ('key == "a" or (value.x == 1 and key == "b")', '(key == "b" and value.x == 1.0) or key == "a"', True),
        ('(key == "a" or key == "b") and key == "c"', 'key == "a" or key == "b" and key == "c"', False),
        ("value.a == 1234567890123456789012345678901", "value.a == 1234567890123456789012345678902", False),
    ],
)
def test_the_canonical_form_tells_what_means_the_same(one: str, other: str, *, is_same: bool) -> None:
    """Two texts with the same meaning have the same canonical form, so a verifier may write `where` in another way."""
    assert (parse_where(one).canonical == parse_where(other).canonical) == is_same


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-100, 100) | st.sampled_from(["ada", "a/b", 'q"', "ü", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b/", "ü"]), inner, max_size=3),
    max_leaves=6,
)
wheres = st.sampled_from(
    [
        'value.a == "ada"',
        'value.a["b/"] == "a/b"',
        'value.ü == "ü"',
        "value.a == 1",
        'value["b/"] exists',
        'value.a == "q\\""',
        'key == "ada"',
        'header.a == "x" or value.a == true',
        'header.a exists and (value.a == null or key == "x")',
    ]
)


def spoil(text: str, how: str) -> bytes:
    """Change JSON as a faulty serializer might."""
    if how in ("utf-16", "cp1252"):
        return text.encode(how, "replace")
    if how == "text":
        return json.dumps(text).encode()
    return (f'{{"z": NaN, "a": {text}}}' if how == "NaN" else text + how).encode()


@given(
    where=wheres,
    values=st.lists(
        st.tuples(
            json_values, st.booleans(), st.booleans(), st.sampled_from(["", "NaN", " x", "utf-16", "cp1252", "text"])
        ),
        min_size=1,
        max_size=4,
    ),
    key=st.sampled_from([None, b"ada", b"x"]),
    header=st.sampled_from([None, b"x", b"y"]),
)
def test_no_batch_is_passed_over_that_holds_a_record_that_is_meant(
    where: str, values: list[tuple[Any, bool, bool, str]], key: bytes | None, header: bytes | None
) -> None:
    """If `may_be_in` excludes a batch, none of its records matches or is undecided, whatever JSON escapes or lacks."""
    parsed = parse_where(where)
    records = []
    for offset, (value, is_ascii, has_slashes, spoiled) in enumerate(values):
        text = json.dumps(value, ensure_ascii=is_ascii)
        text = text.replace("/", "\\/") if has_slashes else text
        headers = (Header("a", header),) if header is not None else ()
        records.append(Record(offset, 0, key, spoil(text, spoiled), headers))
    batch = build_batch(records)
    payload = records_payload(batch, 0, parse_header(batch))
    if not parsed.may_be_in(payload):
        assert {parsed.judge(one) for one in records} == {NO}


@given(value=json_values, is_ascii=st.booleans(), how=st.sampled_from([" x", "utf-16", "cp1252", "text"]), where=wheres)
def test_no_record_that_would_be_meant_is_called_not_meant(value: Any, is_ascii: bool, how: str, where: str) -> None:
    """If the JSON in a damaged value matches, the value is at least undecided."""
    parsed, text = parse_where(where), json.dumps(value, ensure_ascii=is_ascii)
    if parsed.judge(record(text.encode())) == YES:
        assert parsed.judge(record(spoil(text, how))) != NO
