"""Hosts of ACLs that are ranges of addresses, as Kafka 4.4.0 reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from diamant.broker.security.authorization.acl_hosts import AddressRange, address_of, host_key, parse_range

CASES = json.loads((Path(__file__).parents[2] / "golden" / "cidr_4.4.0.json").read_text(encoding="utf-8"))["cases"]


def test_ranges_are_read_as_by_kafka() -> None:
    """The same texts are valid, with the same error for others, and a range covers the same addresses."""
    found = []
    for text, host, _, _ in CASES:
        error, key = None, host_key(text)
        try:
            parse_range(text)
        except ValueError as problem:
            error = str(problem)
        address = address_of(host)
        is_covered = isinstance(key, AddressRange) and address is not None and address[0] == key.bits
        found.append([text, host, error, is_covered and address[1] >> key.bits - key.length == key.prefix])
    assert found == CASES


@pytest.mark.parametrize("text", ["10.0.0.0/8", "10.9.8.7/8", "10.255.255.255/08"])
def test_bits_beyond_the_prefix_do_not_count(text: str) -> None:
    """A range with host bits is that of its network."""
    assert host_key(text) == AddressRange(32, 8, 10)


INTERFACES = """\
fd000000000000000000000000000002 04 40 00 82     eth0
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""
SCOPES = {
    "fe80::1%eth0/64": True,
    "[fe80::1%eth0]/64": True,
    "fe80::1%lo/64": False,
    "::1%lo/128": True,
    "::1%eth0/128": True,
    "2001:db8::%lo/32": True,
    "fec0::1%eth0/64": False,
    "ff02::1%eth0/64": True,
    "::%lo/0": True,
    "::1.2.3.4%eth0/96": True,
    "fe80::1%nosuch/64": False,
    "fe80::1%ETH0/64": False,
    "fe80::1%/64": False,
    "fe80::1%eth0%lo/64": False,
    "fe80::1%0/64": True,
    "fe80::1%04/64": True,
    "fe80::1%99/64": True,
    "fe80::1%2147483648/64": False,
    "fe80::1%4x/64": False,
    "fe80::1%-1/64": False,
    "fe80::1%\N{ARABIC-INDIC DIGIT FOUR}/64": False,
    "fe80::1%" + "9" * 5000 + "/64": False,
    "::ffff:1.2.3.4%eth0/96": False,
    "::ffff:1.2.3.4%1/96": False,
}
"""What Kafka 4.4.0 accepts on a machine with these interfaces."""


def test_a_scope_has_to_exist_on_this_machine(tmp_path: Path) -> None:
    """An interface needs an address of the kind, a number only to fit 32 bits; the covered addresses are those without it."""
    interfaces = tmp_path / "if_inet6"
    interfaces.write_text(INTERFACES)
    for text, is_valid in SCOPES.items():
        address, _, _ = text.partition("/")
        if is_valid:
            assert parse_range(text, interfaces) == parse_range(re.sub("%[^]/]*", "", text)), text
        else:
            with pytest.raises(ValueError, match=f"^{re.escape(f'Could not parse [{address}]')}$"):
                parse_range(text, interfaces)
    interfaces.unlink()
    with pytest.raises(ValueError, match="Could not parse"):
        parse_range("fe80::1%eth0/64", interfaces)


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        ("9" * 11, "invalid prefix length"),
        ("-" + "9" * 5000, "invalid prefix length"),
        ("2147483648", "invalid prefix length"),
        ("2147483647", "prefix length must be between 0 and 128"),
        ("-2147483648", "prefix length must be between 0 and 128"),
        ("\N{ARABIC-INDIC DIGIT SIX}4", None),
        ("0" * 5000 + "64", None),
    ],
)
def test_the_prefix_of_an_ipv6_range_is_an_integer_as_in_java(length: str, reason: str | None) -> None:
    """Any digits of Unicode, any number of leading zeros, 32 bits: what Kafka has stored denies the same clients here."""
    if reason is None:
        assert parse_range(f"2001:db8::/{length}") == AddressRange(128, 64, 0x20010DB800000000)
    else:
        with pytest.raises(ValueError, match=rf"^Could not parse \[2001:db8::/{length}\] - {reason}$"):
            parse_range(f"2001:db8::/{length}")
