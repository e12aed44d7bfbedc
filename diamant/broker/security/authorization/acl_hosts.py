"""The hosts of ACLs: an address, `*`, or a range of addresses in CIDR notation (KIP-1276), like `10.0.0.0/8` or `2001:db8::/32`.

Bits of the address beyond the prefix are ignored. An IPv4 range covers no IPv6 client and vice versa, so only `*` covers both.
A client that reaches an IPv6 listener over IPv4 is matched by its IPv4 address; IPv4-mapped ranges are refused. The scope of a
range such as `fe80::1%eth0/64` has to exist on this machine, but is otherwise ignored.

Source: CidrUtils, with SubnetUtils and SubnetUtils6 of Apache Commons Net; AclControlManager.validateHostPattern; Java's
InetAddress and Inet6Address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from diamant.broker.acl import WILDCARD

if TYPE_CHECKING:
    from ipaddress import IPv6Address  # importing ipaddress takes 5 ms, so only functions that need it do
    from pathlib import Path

_IPV4 = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})/([0-9]{1,2})")
_INTEGER = re.compile(r"([+-]?)0*(\d{1,10})")
"""Matches what Java's Integer.parseInt accepts: decimal digits of any script, with an optional sign."""


INTERFACES = "/proc/net/if_inet6"
"""Linux's list of this machine's IPv6 addresses, one a line: address, interface number, prefix length, kind, flags, interface."""
_LINK_LOCAL, _SITE_LOCAL = 0x20, 0x40


class AddressRange(NamedTuple):
    """All addresses with `bits` bits (32 for IPv4, 128 for IPv6) whose first `length` bits are `prefix`."""

    bits: int
    length: int
    prefix: int


HostKey: TypeAlias = str | AddressRange
"""The lookup key of an ACL's host: the parsed range, or the host itself if it is not a range."""


def parse_range(host: str, interfaces: str | Path = INTERFACES) -> AddressRange:
    """Parse CIDR notation. Raises ValueError with Kafka's message. `interfaces`: the file that lists this machine's addresses."""
    address, _, length = host.partition("/")
    if ":" in host:
        return _ipv6_range(host, address, length, interfaces)
    found = _IPV4.fullmatch(host)
    if found is None:
        raise ValueError(f"Could not parse [{host}]")
    *octets, bits = (int(number) for number in found.groups())
    for value, highest in (*((octet, 255) for octet in octets), (bits, 32)):
        if value > highest:
            raise ValueError(f"Value [{value}] not in range [0,{highest}]")
    return AddressRange(32, bits, int.from_bytes(bytes(octets)) >> 32 - bits)


def _ipv6_range(host: str, address: str, length: str, interfaces: str | Path) -> AddressRange:
    from ipaddress import AddressValueError, IPv6Address

    digits = _INTEGER.fullmatch(length)
    if digits is None or not -(2**31) <= (bits := int("".join(digits.groups()))) < 2**31:
        raise ValueError(f"Could not parse [{host}] - invalid prefix length")
    if not 0 <= bits <= 128:
        raise ValueError(f"Could not parse [{host}] - prefix length must be between 0 and 128")
    is_bracketed = address.startswith("[") and address.endswith("]")
    try:
        found = IPv6Address(address[1:-1] if is_bracketed else address)
        if found.scope_id is not None and not _is_scope(found.scope_id, found, interfaces):
            raise AddressValueError("no such scope")
    except AddressValueError:
        raise ValueError(f"Could not parse [{address}]") from None
    if found.ipv4_mapped is not None:
        raise ValueError(f"Could not parse [{address}] - not an IPv6 address")
    return AddressRange(128, bits, int(found) >> 128 - bits)


def _is_scope(scope: str, address: IPv6Address, interfaces: str | Path) -> bool:
    """True if the scope is a number or, as in Java, a local interface with an address of this kind (link-local, site-local)."""
    if address.ipv4_mapped is not None:
        return False
    if number := re.fullmatch(r"0*([0-9]{1,10})", scope):
        return int(number[1]) < 2**31
    try:
        with open(interfaces, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    kind = _LINK_LOCAL if address.is_link_local else _SITE_LOCAL if address.is_site_local else 0
    found = [line.split() for line in lines]
    return any(name == scope and int(kinds, 16) & kind == kind for _, _, _, kinds, _, name in found)


def host_key(host: str) -> HostKey:
    """Return the lookup key of an ACL's host. As in Kafka, an invalid range matches no client."""
    if "/" not in host:
        return host
    try:
        return parse_range(host)
    except ValueError:
        return host


def address_of(host: str) -> tuple[int, int] | None:
    """Return the size in bits and the value of a client's address; None if no range covers it (0.0.0.0, or not an address)."""
    from ipaddress import AddressValueError, IPv4Address, IPv6Address

    try:
        if ":" in host:
            return 128, int(IPv6Address(host))
        return (32, number) if (number := int(IPv4Address(host))) else None
    except AddressValueError:
        return None


def is_covered(host: str, by: Iterable[str]) -> bool:
    """True if the ACL hosts in `by` together match every client that the ACL host `host` matches."""
    others = {*by}
    if host in others or WILDCARD in others:
        return True
    ranges = sorted({found for other in others for found in _ranges_of(other)}, key=_ends)
    return all(_is_in_union(wanted, ranges) for wanted in _ranges_of(host))


def _is_in_union(wanted: AddressRange, ranges: Iterable[AddressRange]) -> bool:
    """True if `ranges`, sorted by their first addresses, cover all of `wanted`."""
    missing, end = _ends(wanted)
    for first, behind in (_ends(one) for one in ranges if one.bits == wanted.bits):
        if first > missing:
            break
        missing = max(missing, behind)
    return missing >= end


def _ends(addresses: AddressRange) -> tuple[int, int]:
    """Return, as integers, the first address of a range and the address after its last one."""
    bits, length, prefix = addresses
    return prefix << bits - length, prefix + 1 << bits - length


def _ranges_of(host: str) -> list[AddressRange]:
    """Return the address ranges that an ACL's host covers: all IPv4 and all IPv6 for `*`, none for a name or an invalid range."""
    if host == WILDCARD:
        return [AddressRange(32, 0, 0), AddressRange(128, 0, 0)]
    key = host_key(host)
    if isinstance(key, AddressRange):
        return [key]
    return [] if (address := address_of(key)) is None else [AddressRange(address[0], *address)]
