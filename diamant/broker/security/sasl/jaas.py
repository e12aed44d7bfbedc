r"""The parser of JAAS configurations, the values of `sasl.jaas.config`: a login module, a flag and options.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret" user_bob='hush';

Whitespace, `=`, `;` and quotes end a word. Quoted values may hold any character; `\` escapes a quote. Comments: `//` and `/* */`.

Errors name the line and the column, never a value, which may be a password.

Source: JaasConfig (java.io.StreamTokenizer with its rules).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, NoReturn

from diamant.storage.config_key import ConfigError

FLAGS = ("required", "requisite", "sufficient", "optional")

_TOKEN = re.compile(
    r"""(?P<blank>[\x00-\x20]+|//[^\n]*|/\*.*?\*/)
      | (?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<sign>[=;])
      | (?P<word>[^\x00-\x20="';/]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-3]?[0-7]{1,2})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class LoginModule(NamedTuple):
    """The login module of a JAAS configuration, with its options."""

    class_name: str
    options: Mapping[str, str]


class _Token(NamedTuple):
    kind: str  # word, quoted, sign, end
    text: str
    position: int


def parse_jaas(name: str, text: str) -> LoginModule:
    """Parse a JAAS configuration with one login module. Raises ConfigError, whose message begins with the setting's `name`."""
    tokens = _tokens(name, text)
    module = next(tokens)
    if module.kind not in ("word", "quoted"):
        _fail(name, text, module, "expected the class of a login module")
    flag = next(tokens)
    if flag.kind != "word" or flag.text.lower() not in FLAGS:
        _fail(name, text, flag, f"expected a control flag ({', '.join(FLAGS)}) after {module.text}")
    options: dict[str, str] = {}
    while (key := next(tokens)).text != ";" or key.kind != "sign":
        if key.kind == "end":
            _fail(name, text, key, "expected an option, or a semicolon at the end")
        if key.kind == "sign":
            _fail(name, text, key, "expected the name of an option or a semicolon")
        equals = next(tokens)
        if (equals.kind, equals.text) != ("sign", "="):
            _fail(name, text, equals, f"expected = after the option {key.text if key.kind == 'word' else 'in quotes'}")
        value = next(tokens)
        if value.kind not in ("word", "quoted"):
            _fail(name, text, value, f"expected a value for the option {key.text}; put a value with = or ; in quotes")
        options[key.text] = value.text
    rest = next(tokens)
    if rest.kind != "end":
        _fail(name, text, rest, "expected nothing after the semicolon; only one login module is allowed")
    return LoginModule(module.text, options)


def _tokens(name: str, text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            here = _Token("", "", position)
            if text[position] in "\"'":
                _fail(name, text, here, f"the quote {text[position]} is not closed on its line")
            if text.startswith("/*", position):
                _fail(name, text, here, "the comment /* has no end")
            _fail(name, text, here, "a slash starts a comment; put a value that contains one in quotes")
        kind = str(match.lastgroup)
        if kind != "blank":
            word = match.group()
            yield _Token(kind, _ESCAPE.sub(_escaped, word[1:-1]) if kind == "quoted" else word, position)
        position = match.end()
    while True:
        yield _Token("end", "", len(text))


def _escaped(match: re.Match[str]) -> str:
    octal, letter = match.groups()
    return chr(int(octal, 8)) if octal else _LETTERS.get(letter, letter)


def _fail(name: str, text: str, token: _Token, reason: str) -> NoReturn:
    before = text[: token.position]
    line, column = before.count("\n") + 1, token.position - (before.rfind("\n") + 1) + 1
    where = "at the end" if token.kind == "end" else f"line {line}, column {column}"
    raise ConfigError(f"{name}: invalid JAAS text ({where}): {reason}")
