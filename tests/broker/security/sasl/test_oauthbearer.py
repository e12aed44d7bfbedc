"""OAUTHBEARER: its messages, and signed, unsigned and invalid tokens."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from diamant.broker.security.sasl.oauthbearer import AcceptedToken, OAuthBearerExchange, TokenRefused
from diamant.broker.security.sasl.signed_tokens import Expectations, SignedTokens
from diamant.broker.security.sasl.unsecured_tokens import UnsecuredTokens
from diamant.storage.config_key import ConfigError
from tests.broker.security.sasl.sasl_wire import bearer, unsigned_token

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
CLAIMS: dict[str, Any] = {
    "sub": "alice",
    "iat": NOW_S - 10,
    "exp": NOW_S + 60,
    "aud": ["kafka", "x"],
    "iss": "https://i",
}
URL = "sasl.oauthbearer.jwks.endpoint.url"


def key_of(private: Any, algorithm: str, kid: str) -> dict[str, Any]:
    """Return the public key as a JSON Web Key."""
    name = {"RS": "RS256", "ES": "ES256", "Ed": "EdDSA"}[algorithm[:2]]
    text = jwt.get_algorithm_by_name(name).to_jwk(private.public_key())
    return {**json.loads(text), "kid": kid, "alg": algorithm}


RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
KEYS = [key_of(RSA, "RS256", "r"), key_of(EC, "ES256", "e"), key_of(ED, "EdDSA", "d"), {"kty": "oct", "k": "c2VjcmV0"}]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file with public keys of three types, and a shared secret that is ignored."""
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": KEYS}))
    return path


def tokens_of(keys: Path, **expected: Any) -> SignedTokens:
    """Return a validator with a fixed time."""
    return SignedTokens(URL, f"file://{keys}", Expectations(**expected), lambda: NOW_MS)


def signed(claims: dict[str, Any], key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r") -> str:
    """Return a token."""
    return jwt.encode(claims, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid})


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"), [(RSA, "RS256", "r"), (EC, "ES256", "e"), (ED, "EdDSA", "d"), (RSA, "RS256", None)]
)
def test_a_signed_token_names_its_user(keys: Path, key: Any, algorithm: str, kid: str | None) -> None:
    """RSA, elliptic curves and Ed25519 are accepted. Without a kid, all keys of the type are tried."""
    tokens = tokens_of(keys, audiences=("kafka",), issuer="https://i")
    assert tokens.validate(signed(CLAIMS, key, algorithm, kid)) == AcceptedToken("alice", (NOW_S + 60) * 1000)


def test_the_user_may_stand_in_another_claim(keys: Path) -> None:
    """`sasl.oauthbearer.sub.claim.name` names the claim."""
    assert tokens_of(keys, sub_claim="client").validate(signed({**CLAIMS, "client": "c:1,Ж"})).principal_name == "c:1,Ж"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": NOW_S}, "it expired"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "soon"}, "exp is not a valid time"),
        ({"exp": 1e300}, "exp is not a valid time"),
        ({"iat": None}, "no claim iat"),
        ({"iat": True}, "iat is not a valid time"),
        ({"nbf": NOW_S + 1}, "nbf"),
        ({"sub": None}, "names no user"),
        ({"sub": " "}, "names no user"),
        ({"sub": 7}, "names no user"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": [7, None]}, "audience"),
        ({"iss": "https://j"}, "issuer"),
        ({"iss": None}, "issuer"),
    ],
)
def test_claims_that_do_not_hold_are_refused(keys: Path, changed: dict[str, Any], reason: str) -> None:
    """The log has the reason; clients get `invalid_token`."""
    claims = {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}
    with pytest.raises(TokenRefused, match=reason) as caught:
        tokens_of(keys, audiences=("kafka",), issuer="https://i").validate(signed(claims))
    assert caught.value.status == "invalid_token"


def test_clocks_may_differ_a_little(keys: Path) -> None:
    """`sasl.oauthbearer.clock.skew.seconds` is the tolerance."""
    for changed in ({"exp": NOW_S - 29}, {"nbf": NOW_S + 30}):
        token = signed({**CLAIMS, **changed})
        assert tokens_of(keys, clock_skew_ms=30_000).validate(token).principal_name == "alice"
        with pytest.raises(TokenRefused):
            tokens_of(keys).validate(token)


def parts_of(header: dict[str, Any]) -> str:
    """Return the header and claims of a token, in base64."""
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, CLAIMS))
    return ".".join(encoded)


def forged() -> dict[str, str]:
    """Tokens that no issuer has signed."""
    good = signed(CLAIMS)
    header, claims, signature = good.split(".")
    other = signed({**CLAIMS, "sub": "root"}).split(".")[1]
    public = jwt.get_algorithm_by_name("RS256").to_jwk(RSA.public_key())
    return {
        "none": unsigned_token(**CLAIMS).decode(),
        "none, signed": f"{parts_of({'alg': 'none'})}.{signature}",
        "no alg": f"{parts_of({})}.{signature}",
        "alg of another type": f"{parts_of({'alg': ['RS256']})}.{signature}",
        "the public key as a secret": jwt.encode(
            CLAIMS, public[:30] + "0" * 40, algorithm="HS256", headers={"kid": "r"}
        ),
        "HS512": jwt.encode(CLAIMS, "x" * 64, algorithm="HS512"),
        "the key of another kind": signed(CLAIMS, EC, "ES256", "r"),
        "an unknown kid": signed(CLAIMS, kid="x"),
        "another key": signed(CLAIMS, rsa.generate_private_key(public_exponent=65537, key_size=2048)),
        "other claims": f"{header}.{other}.{signature}",
        "no signature": f"{header}.{claims}.",
        "two parts": f"{header}.{claims}",
        "four parts": f"{good}.x",
        "no base64": "a.b.c",
        "nested": f"{base64.urlsafe_b64encode(b'[' * 3000).decode().rstrip('=')}.{claims}.{signature}",
        "empty": "..",
    }


@pytest.mark.parametrize("name", forged())
def test_a_forged_token_is_refused(keys: Path, name: str) -> None:
    """No token raises another exception."""
    with pytest.raises(TokenRefused):
        tokens_of(keys).validate(forged()[name])


def test_keys_are_read_again_when_the_file_changes(keys: Path) -> None:
    """The file is checked at most once a second. If it cannot be read, the previous keys stay in use."""
    tokens = SignedTokens(URL, f"file://{keys}", Expectations(), lambda: NOW_MS, look_interval_s=0)
    new = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    token = signed(CLAIMS, new, kid="n")
    with pytest.raises(TokenRefused, match="no RS256 key with the kid 'n'"):
        tokens.validate(token)
    keys.write_text("{")
    assert tokens.validate(signed(CLAIMS)).principal_name == "alice"
    replacement = keys.with_suffix(".new")
    replacement.write_text(json.dumps({"keys": [key_of(new, "RS256", "n")]}))
    os.replace(replacement, keys)
    assert tokens.validate(token).principal_name == "alice"
    with pytest.raises(TokenRefused):
        tokens.validate(signed(CLAIMS))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "expected a JSON Web Key Set"),
        ('{"keys": {}}', "expected a JSON Web Key Set"),
        ('{"keys": []}', "no public key"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "no public key"),
        ('{"keys": [{"kty": "RSA", "n": "x"}]}', "key 0: "),
        ('{"keys": [' + ",".join(["{}"] * 101) + "]}", "101 keys, expected at most 100"),
        ("[" * 100_000, "expected a JSON Web Key Set"),
        (" " * (1024 * 1024 + 1), "bytes or more"),
    ],
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    """The error names the configuration and the file."""
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        tokens_of(path)
    assert str(caught.value).startswith(f"{URL}: {path}: ")


@pytest.mark.parametrize("url", ["https://issuer/keys", "/etc/keys", "file://host/keys", "file:keys", ""])
def test_keys_come_from_a_file_only(url: str) -> None:
    """Kafka fetches them over https, too."""
    with pytest.raises(ConfigError, match=r"is not file:///path"):
        SignedTokens(URL, url, Expectations(), lambda: NOW_MS)


# -- without a signature ------------------------------------------------------------------------------------------------


def test_an_unsigned_token_is_believed_where_that_is_asked_for() -> None:
    """Kafka's options set the claims and the clock tolerance."""
    token = unsigned_token(name="bob", exp=NOW_S - 1, roles=["a", "b"]).decode()
    options = {
        "unsecuredValidatorPrincipalClaimName": "name",
        "unsecuredValidatorScopeClaimName": "roles",
        "unsecuredValidatorRequiredScope": "b a",
        "unsecuredValidatorAllowableClockSkewMs": "2000",
    }
    assert UnsecuredTokens(options, lambda: NOW_MS, "n").validate(token) == AcceptedToken("bob", (NOW_S - 1) * 1000)
    with pytest.raises(TokenRefused, match="scope c is missing") as caught:
        UnsecuredTokens({**options, "unsecuredValidatorRequiredScope": "c"}, lambda: NOW_MS, "n").validate(token)
    assert (caught.value.status, caught.value.scope) == ("insufficient_scope", "c")
    for skew in ("-1", "x", "9" * 10):
        with pytest.raises(ConfigError, match="AllowableClockSkewMs"):
            UnsecuredTokens({"unsecuredValidatorAllowableClockSkewMs": skew}, lambda: NOW_MS, "n")


@pytest.mark.parametrize(
    "make",
    [
        lambda: signed(CLAIMS),
        lambda: unsigned_token(sub="a").decode(),
        lambda: unsigned_token(exp=NOW_S + 9).decode(),
        lambda: unsigned_token(sub="a", exp=NOW_S).decode(),
        lambda: unsigned_token(sub="a", exp=NOW_S + 9, iat=NOW_S + 5).decode(),
        lambda: unsigned_token(sub="a", exp=NOW_S + 9, nbf=NOW_S + 5).decode(),
        lambda: parts_of({"alg": "RS256"}) + ".",
        lambda: "x",
        lambda: "a.b.",
        lambda: "..",
    ],
)
def test_an_unsigned_token_that_does_not_hold_is_refused(make: Callable[[], str]) -> None:
    """A signed token is refused, too, since it is meant for another validator."""
    with pytest.raises(TokenRefused):
        UnsecuredTokens({}, lambda: NOW_MS, "n").validate(make())


# -- messages -----------------------------------------------------------------------------------------------------------


class Validator:
    """Accepts one token."""

    def validate(self, token: str) -> AcceptedToken:
        if token != "good":
            raise TokenRefused("for the log")
        return AcceptedToken("alice", NOW_MS)


@pytest.mark.parametrize(
    "message", [bearer(b"good"), bearer(b"good", b"n,a=alice,"), b"n,,\x01x=y\x01auth=bearer  good\x01\x01"]
)
def test_a_token_lets_in(message: bytes) -> None:
    """The authorization id may be the user's, and extensions are ignored."""
    exchange = OAuthBearerExchange(Validator())
    assert exchange.respond(message) == b""
    assert exchange.identity == Identity("alice", NOW_MS)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01x=y\x01\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer g\xff\x01\x01",
        bearer(b"good", b"n,a=bob,"),
    ],
)
def test_a_message_that_is_none_fails(message: bytes) -> None:
    """A malformed message fails at once."""
    exchange = OAuthBearerExchange(Validator())
    with pytest.raises(AuthenticationFailed):
        exchange.respond(message)
    assert exchange.identity is None


@pytest.mark.parametrize(
    ("last", "told"), [(b"\x01", '{"status":"invalid_token"}'), (b"", None), (bearer(b"good"), None)]
)
def test_after_a_refusal_the_exchange_is_over(last: bytes, told: str | None) -> None:
    """Every further message fails; ^A fails with the reason of the refusal."""
    exchange = OAuthBearerExchange(Validator())
    assert exchange.respond(bearer(b"bad")) == b'{"status":"invalid_token"}'
    with pytest.raises(AuthenticationFailed, match="for the log") as caught:
        exchange.respond(last)
    assert caught.value.told == told
    assert exchange.identity is None
