r"""Subscriptions by regular expression: the syntax of RE2, matched against whole topic names in linear time.

Clients send any pattern they like, so it is not given to an engine that backtracks: Python's would hold the broker up for hours
over `(a+)+$`. A pattern becomes a nondeterministic automaton whose states are followed all at once; which states follow on
which is remembered, so that a typical name costs a look-up for each character.

Topic names have ASCII letters, digits, '.', '_' and '-' only: classes of characters are cut down to ASCII, and what cannot
occur in a name matches nothing. Understood is what RE2/J, which Kafka uses, does:

    x  .  [a-z]  [^a-z]  [[:alpha:]]  \d \s \w (and \D \S \W)  \pL \p{Lu} \PN  \Q...\E
    \x41 \x{41} \101 \t \n \r \f \v \a
    xy  x|y  (x)  (?:x)  (?P<n>x)  (?<n>x)  (?i)  (?i:x)  flags i m s U
    x*  x+  x?  x{2} x{2,} x{2,5}, each also with ? behind it      ^ $ \A \z \b \B

Not understood, as there: back references, looking ahead or behind, x*+, x**. Of Unicode's classes only ASCII's share of the
general categories (L, Lu, N, Nd, P, S, ...) is known; scripts (`\p{Greek}`) are taken for empty, but Latin and Common.

Bounds: MAX_PATTERN_LENGTH characters, MAX_STATES states, MAX_STEPS remembered, MAX_WORK to match. All names are matched in a
thread; it is plain Python, which gives way to the event loop all the time, unlike a match of `re`.

Source: KIP-848, com.google.re2j; TopicRegexResolver.
"""

from __future__ import annotations

import logging
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from diamant.protocol.errors import ErrorCode, KafkaError

MAX_PATTERN_LENGTH = 4_096
MAX_STATES = 2_000
MAX_STEPS = 20_000
MAX_WORK = 20_000_000
"""States that matching one pattern may visit, about 10 s of a thread's time; most patterns need a few hundred."""

MAX_REPEAT = 1_000
MAX_NESTING = 100

NO_REPETITION = -1, -1

logger = logging.getLogger(__name__)

_ALL = (1 << 128) - 1
_WORD_CHARACTERS = string.ascii_letters + string.digits + "_"


def check_pattern(text: str) -> None:
    """Whether `text` is a regular expression that can be used. KafkaError INVALID_REGULAR_EXPRESSION."""
    TopicPattern(text)


def matching_topics(patterns: Sequence[str], names: Sequence[str]) -> dict[str, frozenset[str]]:
    """The names that each pattern matches as a whole; a pattern that cannot be used matches none. Made for a thread."""
    found: dict[str, frozenset[str]] = {}
    for text in patterns:
        try:
            pattern = TopicPattern(text)
            found[text] = frozenset(filter(pattern.matches, names))
        except KafkaError as error:
            logger.warning("%s", error.detail)
            found[text] = frozenset()
    return found


class TopicPattern:
    """One compiled pattern. KafkaError INVALID_REGULAR_EXPRESSION if it cannot be."""

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self._text = text
        self._states = parser.states
        self._steps: dict[tuple[frozenset[int], str, bool], frozenset[int]] = {}
        self._start = parser.start
        self._work = 0

    def matches(self, name: str) -> bool:
        """Whether the whole name matches. KafkaError INVALID_REGULAR_EXPRESSION after MAX_WORK."""
        current = frozenset((self._start,))
        before = ""
        for character in name:
            key = (current, character, before in _WORD_CHARACTERS and before != "")
            step = self._steps.get(key)
            if step is None:
                step = self._next(current, character, before)
                if len(self._steps) >= MAX_STEPS:
                    self._steps.clear()
                self._steps[key] = step
            current, before = step, character
            if not current:
                return False
        return any(self._states[state].is_end for state in self._closure(current, before, ""))

    def _next(self, current: frozenset[int], character: str, before: str) -> frozenset[int]:
        code = ord(character)
        if code >= 128:
            return frozenset()
        states = self._states
        reachable = self._closure(current, before, character)
        self._work += len(reachable)
        if self._work > MAX_WORK:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION, f"{self._text[:200]!r} takes too long to match, it is left out"
            )
        return frozenset(states[state].following for state in reachable if states[state].characters >> code & 1)

    def _closure(self, current: frozenset[int], before: str, after: str) -> set[int]:
        """Where one can be without another character, between `before` and `after` ("" for an end of the name)."""
        seen = set(current)
        waiting = list(current)
        states = self._states
        while waiting:
            state = states[waiting.pop()]
            if state.assertion is not None and not state.assertion(before, after):
                continue
            for other in state.empty_moves:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen


class _State:
    """A state either takes one of `characters` (a bit for each of ASCII) to `following`, or moves on without one."""

    __slots__ = ("assertion", "characters", "empty_moves", "following", "is_end")

    def __init__(self) -> None:
        self.characters = 0
        self.following = -1
        self.empty_moves: list[int] = []
        self.assertion: Callable[[str, str], bool] | None = None
        self.is_end = False


class _Flags(NamedTuple):
    ignores_case: bool = False
    is_multiline: bool = False
    dot_is_all: bool = False
    is_lazy: bool = False


# A node is what a part of the pattern means: a function that adds its states before those that begin at `following` and
# says where it begins. States are made back to front, so nothing needs to be patched but loops.


class _Node(NamedTuple):
    kind: str
    characters: int = 0
    parts: tuple[_Node, ...] = ()
    low: int = 0
    high: int = -1
    assertion: Callable[[str, str], bool] | None = None


class _Parser:
    """Reads a pattern and builds its states."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self.states: list[_State] = []
        if len(text) > MAX_PATTERN_LENGTH:
            raise self._error(f"it has {len(text)} characters, at most {MAX_PATTERN_LENGTH} are taken")
        node, _ = self._alternation(_Flags())
        if self._position < len(text):
            raise self._error("unexpected )")
        end = self._new_state()
        self.states[end].is_end = True
        self.start = self._build(node, end)

    def _error(self, reason: str) -> KafkaError:
        shown = self._text if len(self._text) <= 200 else self._text[:200] + "..."
        return KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {reason}.",
        )

    # -- reading -------------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise self._error("it ends too early")
        self._position += 1
        return character

    def _accept(self, expected: str) -> bool:
        if self._text.startswith(expected, self._position):
            self._position += len(expected)
            return True
        return False

    def _alternation(self, flags: _Flags) -> tuple[_Node, _Flags]:
        branches = []
        while True:
            branch, flags = self._concatenation(flags)
            branches.append(branch)
            if not self._accept("|"):
                break
        return (branches[0] if len(branches) == 1 else _Node("alternation", parts=tuple(branches))), flags

    def _concatenation(self, flags: _Flags) -> tuple[_Node, _Flags]:
        parts: list[_Node] = []
        while (character := self._peek()) and character not in "|)":
            if self._accept("\\Q"):
                end = self._text.find("\\E", self._position)
                literal = self._text[self._position :] if end < 0 else self._text[self._position : end]
                self._position = len(self._text) if end < 0 else end + 2
                parts += [_literal(one, flags) for one in literal]
                if not literal or self._peek() not in "*+?{":
                    continue
                parts.append(self._repetition(parts.pop()))
                continue
            if character == "(":
                node, flags = self._group(flags)
                if node is None:
                    continue  # flags for what follows
            else:
                node = self._atom(flags)
            parts.append(self._repetition(node))
        return _Node("concatenation", parts=tuple(parts)), flags

    def _group(self, flags: _Flags) -> tuple[_Node | None, _Flags]:
        self._position += 1
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"it is nested more than {MAX_NESTING} deep")
        inner = flags
        if self._accept("?"):
            if self._accept("P<") or (self._peek() == "<" and self._accept("<")):
                self._group_name()
            else:
                inner, is_group = self._group_flags(flags)
                if not is_group:
                    self._depth -= 1
                    return None, inner
        node, _ = self._alternation(inner)
        if not self._accept(")"):
            raise self._error("missing closing )")
        self._depth -= 1
        return node, flags

    def _group_name(self) -> None:
        end = self._text.find(">", self._position)
        name = self._text[self._position : max(end, 0)]
        if not name or any(character not in _WORD_CHARACTERS for character in name):
            raise self._error("invalid named capture")
        self._position = end + 1

    def _group_flags(self, flags: _Flags) -> tuple[_Flags, bool]:
        """After "(?": the flags, and whether a group follows."""
        is_on, has_any = True, False
        while True:
            character = self._take()
            if character == "i":
                flags = flags._replace(ignores_case=is_on)
            elif character == "m":
                flags = flags._replace(is_multiline=is_on)
            elif character == "s":
                flags = flags._replace(dot_is_all=is_on)
            elif character == "U":
                flags = flags._replace(is_lazy=is_on)
            elif character == "-" and is_on:
                is_on, has_any = False, False
                continue
            elif character in ":)":
                if not is_on and not has_any:
                    raise self._error("invalid or unsupported Perl syntax")
                return flags, character == ":"
            else:
                raise self._error("invalid or unsupported Perl syntax")
            has_any = True

    def _repetition(self, node: _Node) -> _Node:
        has_one = False
        while True:
            low, high = self._bounds()
            if (low, high) == NO_REPETITION:
                return node
            if has_one:
                raise self._error("invalid nested repetition operator")
            self._accept("?")  # lazy or not: the whole name must match anyway
            node = _Node("repetition", parts=(node,), low=low, high=high)
            has_one = True

    def _bounds(self) -> tuple[int, int]:
        """How often (the most is -1 for any), NO_REPETITION if none follows."""
        for operator, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._accept(operator):
                return bounds
        if self._peek() != "{":
            return NO_REPETITION
        end = self._text.find("}", self._position)
        low_text, comma, high_text = self._text[self._position + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(low_text) or (high_text and not _is_number(high_text)):
            return NO_REPETITION  # then it is a literal brace
        low = int(low_text)
        high = low if not comma else int(high_text) if high_text else -1
        if low > MAX_REPEAT or high > MAX_REPEAT or (high != -1 and high < low):
            raise self._error("invalid repeat count")
        self._position = end + 1
        return low, high

    def _atom(self, flags: _Flags) -> _Node:
        character = self._take()
        if character == ".":
            return _Node("characters", _ALL if flags.dot_is_all else _ALL & ~_bit("\n"))
        if character == "[":
            return _Node("characters", self._class(flags))
        if character == "^":
            return _Node("assertion", assertion=_at_line_start if flags.is_multiline else _at_start)
        if character == "$":
            return _Node("assertion", assertion=_at_line_end if flags.is_multiline else _at_end)
        if character in "*+?":
            raise self._error("missing argument to repetition operator")
        if character == "{":
            self._position -= 1
            if self._bounds() != NO_REPETITION:
                raise self._error("missing argument to repetition operator")
            self._position += 1
            if self._bounds() != NO_REPETITION:
                # Not that it could not be understood: RE2/J refuses it.
                raise self._error("invalid nested repetition operator")
        if character == "\\":
            return self._escape(flags)
        return _literal(character, flags)

    def _escape(self, flags: _Flags) -> _Node:
        character = self._peek()
        if not character:
            raise self._error("trailing backslash at end of expression")
        assertion = _ASSERTIONS.get(character)
        if assertion is not None:
            self._position += 1
            return _Node("assertion", assertion=assertion)
        characters = self._escaped_class(flags)
        if characters is not None:
            return _Node("characters", characters)
        return _literal(self._escaped_character(), flags)

    def _escaped_class(self, flags: _Flags) -> int | None:
        """After a backslash: the characters of a class like d or pL, None if it is none."""
        character = self._peek()
        known = _PERL_CLASSES.get(character.lower()) if character else None
        if known is not None:
            self._position += 1
            return known if character.islower() else _ALL & ~known
        if not character or character not in "pP":
            return None
        self._position += 1
        name = self._take()
        if name == "{":
            end = self._text.find("}", self._position)
            if end < 0:
                raise self._error("invalid character class range")
            name = self._text[self._position : end]
            self._position = end + 1
        is_negated = character == "P"
        if name.startswith("^"):
            is_negated, name = not is_negated, name[1:]
        characters = _unicode_class(name)
        if characters is None:
            raise self._error("invalid character class range")
        if flags.ignores_case:
            characters = _without_case(characters)
        return _ALL & ~characters if is_negated else characters

    def _escaped_character(self) -> str:
        character = self._take()
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            return self._hexadecimal()
        if character in "01234567":
            digits = character
            while len(digits) < 3 and self._peek() and self._peek() in "01234567":
                digits += self._take()
            if character != "0" and len(digits) == 1:
                raise self._error("invalid escape sequence")
            return chr(int(digits, 8))
        if character.isascii() and not character.isalnum():
            return character
        raise self._error("invalid escape sequence")

    def _hexadecimal(self) -> str:
        if self._accept("{"):
            end = self._text.find("}", self._position)
            digits = self._text[self._position : max(end, 0)]
            self._position = end + 1
        else:
            digits = self._text[self._position : self._position + 2]
            self._position += 2
            if len(digits) < 2:
                digits = ""
        if not digits or len(digits) > 6 or any(digit not in string.hexdigits for digit in digits):
            raise self._error("invalid escape sequence")
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise self._error("invalid escape sequence")
        return chr(code)

    def _class(self, flags: _Flags) -> int:
        """After "[": its characters."""
        is_negated = self._accept("^")
        characters, is_first = 0, True
        while is_first or self._peek() != "]":
            if not self._peek():
                raise self._error("missing closing ]")
            is_first = False
            named = self._named_class()
            if named is not None:
                characters |= named
                continue
            if self._peek() == "\\":
                self._position += 1
                known = self._escaped_class(flags)
                if known is not None:
                    characters |= known
                    continue
                self._position -= 1
            low = self._class_character()
            high = low
            if self._peek() == "-" and self._text[self._position + 1 : self._position + 2] not in ("]", ""):
                self._position += 1
                high = self._class_character()
                if high < low:
                    raise self._error("invalid character class range")
            for code in range(ord(low), min(ord(high), 127) + 1):
                characters |= 1 << code
        self._position += 1
        if flags.ignores_case:
            characters = _without_case(characters)
        return _ALL & ~characters if is_negated else characters

    def _named_class(self) -> int | None:
        if not self._text.startswith("[:", self._position):
            return None
        end = self._text.find(":]", self._position)
        if end < 0:
            return None
        name = self._text[self._position + 2 : end]
        known = _POSIX_CLASSES.get(name.removeprefix("^"))
        if known is None:
            raise self._error("invalid character class range")
        self._position = end + 2
        return _ALL & ~known if name.startswith("^") else known

    def _class_character(self) -> str:
        character = self._take()
        return self._escaped_character() if character == "\\" else character

    # -- building ------------------------------------------------------------------------------------------------------

    def _new_state(self) -> int:
        if len(self.states) >= MAX_STATES:
            raise self._error(f"it needs more than {MAX_STATES} states")
        self.states.append(_State())
        return len(self.states) - 1

    def _build(self, node: _Node, following: int) -> int:
        """Add the states of `node`, which go on at `following`; where it begins."""
        if node.kind == "concatenation":
            for part in reversed(node.parts):
                following = self._build(part, following)
            return following
        if node.kind == "repetition":
            return self._build_repetition(node, following)
        index = self._new_state()
        state = self.states[index]
        if node.kind == "characters":
            state.characters, state.following = node.characters, following
        elif node.kind == "assertion":
            state.assertion = node.assertion
            state.empty_moves = [following]
        else:
            state.empty_moves = [self._build(part, following) for part in node.parts]
        return index

    def _build_repetition(self, node: _Node, following: int) -> int:
        (part,) = node.parts
        if node.high == -1:
            loop = self._new_state()
            start = self._build(part, loop)
            self.states[loop].empty_moves = [start, following]
            following = loop if node.low == 0 else start
        else:
            end = following
            for _ in range(node.high - node.low):
                option = self._new_state()
                self.states[option].empty_moves = [self._build(part, following), end]
                following = option
        for _ in range(node.low - (node.high == -1 and node.low > 0)):
            following = self._build(part, following)
        return following


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9


def _bit(character: str) -> int:
    code = ord(character)
    return 1 << code if code < 128 else 0


def _bits(characters: str) -> int:
    found = 0
    for character in characters:
        found |= _bit(character)
    return found


def _without_case(characters: int) -> int:
    for lower, upper in zip(string.ascii_lowercase, string.ascii_uppercase, strict=True):
        both = _bit(lower) | _bit(upper)
        if characters & both:
            characters |= both
    return characters


def _literal(character: str, flags: _Flags) -> _Node:
    characters = _bit(character)
    if flags.ignores_case:
        characters = _without_case(characters)
        # Two characters beyond ASCII are the same as k and s without case.
        characters |= {"\u212a": _bits("kK"), "\u017f": _bits("sS")}.get(character, 0)
    return _Node("characters", characters)


def _unicode_class(name: str) -> int | None:
    if name == "Any":
        return _ALL
    if name in _CATEGORIES:
        found = 0
        for code in range(128):
            if unicodedata.category(chr(code)).startswith(name):
                found |= 1 << code
        return found
    if name == "Latin":
        return _bits(string.ascii_letters)
    if name == "Common":
        return _ALL & ~_bits(string.ascii_letters)
    return 0 if name.isascii() and name.replace("_", "").isalpha() and name[:1].isupper() and len(name) > 2 else None


def _at_start(before: str, after: str) -> bool:
    return not before


def _at_end(before: str, after: str) -> bool:
    return not after


def _at_line_start(before: str, after: str) -> bool:
    return before in ("", "\n")


def _at_line_end(before: str, after: str) -> bool:
    return after in ("", "\n")


def _at_word_boundary(before: str, after: str) -> bool:
    return (before != "" and before in _WORD_CHARACTERS) != (after != "" and after in _WORD_CHARACTERS)


def _not_at_word_boundary(before: str, after: str) -> bool:
    return not _at_word_boundary(before, after)


_ASSERTIONS: dict[str, Callable[[str, str], bool]] = {
    "A": _at_start,
    "z": _at_end,
    "b": _at_word_boundary,
    "B": _not_at_word_boundary,
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_PERL_CLASSES = {"d": _bits(string.digits), "s": _bits("\t\n\f\r "), "w": _bits(_WORD_CHARACTERS)}
_POSIX_CLASSES = {
    "alnum": _bits(string.ascii_letters + string.digits),
    "alpha": _bits(string.ascii_letters),
    "ascii": _ALL,
    "blank": _bits("\t "),
    "cntrl": (1 << 32) - 1 | 1 << 127,
    "digit": _bits(string.digits),
    "graph": _bits(string.ascii_letters + string.digits + string.punctuation),
    "lower": _bits(string.ascii_lowercase),
    "print": _bits(string.ascii_letters + string.digits + string.punctuation + " "),
    "punct": _bits(string.punctuation),
    "space": _bits(string.whitespace),
    "upper": _bits(string.ascii_uppercase),
    "word": _bits(_WORD_CHARACTERS),
    "xdigit": _bits(string.hexdigits),
}
_CATEGORIES = frozenset(
    letter + detail
    for letter, details in (
        ("C", "cfos"),
        ("L", "lmotu"),
        ("M", "cen"),
        ("N", "dlo"),
        ("P", "cdefios"),
        ("S", "ckmo"),
        ("Z", "lps"),
    )
    for detail in ("", *details)
)
