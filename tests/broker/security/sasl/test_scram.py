"""SCRAM with the RFC's examples, and with clients that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from diamant.broker.security.sasl.scram import ScramExchange
from diamant.broker.security.sasl.scram_keys import (
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    changed_credentials,
    invented_credential,
    is_of,
    keys_of,
    make_credential,
    new_salt,
)
from diamant.broker.security.sasl.usual_iterations import UsualIterations
from diamant.protocol.kraft.records import UserScramCredentialRecord
from tests.broker.security.sasl.sasl_wire import scram_final

SHA_256, SHA_512 = SCRAM_MECHANISMS["SCRAM-SHA-256"], SCRAM_MECHANISMS["SCRAM-SHA-512"]
CAROL = make_credential(SHA_256, "carol", "pw")


def exchange_of(
    credential: UserScramCredentialRecord | None = CAROL, nonce: str = "server", usual_iterations: int = MIN_ITERATIONS
) -> ScramExchange:
    """Return an exchange with one known user."""

    def find(mechanism: int, user: str) -> UserScramCredentialRecord | None:
        return credential if credential and (credential.mechanism, credential.name) == (mechanism, user) else None

    return ScramExchange(SHA_256, find, lambda mechanism: usual_iterations, b"secret", lambda: nonce)


def test_the_example_of_rfc_7677() -> None:
    """User, salt, nonces and messages are the RFC's; so are proof and signature."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    stored_key, server_key = keys_of("sha256", salted)
    credential = UserScramCredentialRecord(
        name="user", mechanism=1, salt=salt, stored_key=stored_key, server_key=server_key, iterations=4096
    )
    exchange = exchange_of(credential, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    answer = exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert answer == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.respond(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.identity == Identity("user")


@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C", "a:b", "josé", "Ж 漢", "a b", "User:x", "=", ","])
def test_names_may_have_any_letter(name: str) -> None:
    """Commas and equal signs are escaped on the wire."""
    exchange = exchange_of(make_credential(SHA_256, name, "пароль,="))
    first = f"n={name.replace('=', '=3D').replace(',', '=2C')},r=abc"
    answer = exchange.respond(f"n,,{first}".encode()).decode()
    assert exchange.respond(scram_final(first, answer, "пароль,=")).startswith(b"v=")
    assert exchange.identity == Identity(name)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"y,,n=carol,r=abc",  # channel binding: there is none
        b"p=tls-unique,,n=carol,r=abc",
        b"n,,m=x,n=carol,r=abc",
        b"n,,n=carol",
        b"n,,n=carol,r=",
        b"n,,n=,r=abc",
        b"n,,n=ca=rol,r=abc",
        b"n,,n=ca=2crol,r=abc",
        b"n,,n=carol,r=a\x00c",
        b"n,,n=carol,r=a b",
        b"n,,n=carol,r=abc,",
        b"n,,n=carol,r=abc,1=x",
        b"n,,n=carol,r=abc,tokenauth=true",
        b"n,,n=\xff,r=abc",
        b"n,,n=carol,r=abc\n",
        b"n,a=,n=carol,r=abc",
        b"n,a=bob,n=carol,r=abc",
    ],
)
def test_a_first_message_that_is_none_fails(message: bytes) -> None:
    """A malformed first message fails at once. The error reveals nothing about users, except for a different authorization id."""
    exchange = exchange_of()
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.respond(message)
    assert caught.value.told is None or b"a=bob" in message
    assert exchange.identity is None


def test_a_final_message_that_lies_fails() -> None:
    """Another nonce, another header, a proof of another size or none, and an unsigned extension fail."""
    first = "n=carol,r=abc"
    answer = exchange_of().respond(f"n,,{first}".encode()).decode()
    final = scram_final(first, answer, "pw").decode()
    without_proof, _, proof = final.rpartition(",p=")
    for lie in (
        final.replace("abcserver", "abcserves"),
        final.replace("abcserver", "abc"),
        final.replace("c=biws", "c=eSws"),
        final.replace("c=biws", "c=biws="),
        f"{without_proof},p=",
        f"{without_proof},p=AAAA",
        f"{without_proof},p={'A' * 44}",
        f"{without_proof},p={proof}AAAA",
        f"{without_proof},p=%%%%",
        f"{without_proof},x=y,p={proof}",
        without_proof,
        "",
        f"n,,{first}",
    ):
        exchange = exchange_of()
        exchange.respond(f"n,,{first}".encode())
        with pytest.raises(AuthenticationFailed):
            exchange.respond(lie.encode())
        assert exchange.identity is None


def test_extensions_that_are_signed_are_ignored() -> None:
    """RFC 5802 demands it."""
    exchange = exchange_of()
    first = "n=carol,r=abc,ext=1"
    answer = exchange.respond(f"n,,{first}".encode()).decode()
    assert exchange.respond(scram_final(first, answer, "pw")).startswith(b"v=")


def test_an_unknown_user_gets_the_same_salt_each_time_and_never_comes_in() -> None:
    """Even a proof that matches the made-up credential fails."""
    first, answers = "n=zoe,r=abc", set()
    for _ in range(2):
        exchange = exchange_of()
        answer = exchange.respond(f"n,,{first}".encode()).decode()
        answers.add(answer)
    assert len(answers) == 1
    salt = base64.b64decode(answers.pop().split(",s=")[1].split(",")[0])
    assert abs(len(salt) - len(new_salt())) <= 2
    assert salt.isalnum()
    stored_key = invented_credential(b"secret", SHA_256, "zoe").stored_key
    signed = f"{first},{answer},c=biws,r=abcserver".encode()
    signature = hmac.digest(stored_key, signed, "sha256")
    with pytest.raises(AuthenticationFailed, match="wrong user or password, user 'zoe'"):
        exchange.respond(b"c=biws,r=abcserver,p=" + base64.b64encode(signature))


def test_credentials_are_made_once_for_a_password() -> None:
    """Credentials are made for both mechanisms, with Kafka's iterations. Another password gets new ones."""
    users = {"carol": "pw"}
    made = changed_credentials(users, lambda mechanism, user: None)
    assert [(one.name, one.mechanism, one.iterations) for one in made] == [
        ("carol", 1, MIN_ITERATIONS),
        ("carol", 2, MIN_ITERATIONS),
    ]
    known = {(one.mechanism, one.name): one for one in made}
    assert changed_credentials(users, lambda mechanism, user: known.get((mechanism, user))) == []
    assert is_of(known[2, "carol"], SHA_512, "pw")
    assert len(changed_credentials({"carol": "pw2"}, lambda mechanism, user: known.get((mechanism, user)))) == 2


def stored(mechanism: int, *iterations: int) -> list[UserScramCredentialRecord]:
    """Credentials of one mechanism."""
    return [
        UserScramCredentialRecord(
            name=f"user{number}", mechanism=mechanism, salt=b"s", stored_key=b"k", server_key=b"k", iterations=each
        )
        for number, each in enumerate(iterations)
    ]


def test_the_most_frequent_of_each_mechanism() -> None:
    """The lowest of equally common counts wins, in any order. Without credentials it is Kafka's default."""
    credentials = [*stored(1, 4096, 8192, 8192), *stored(2, 16384, 5000, 16384, 5000)]
    for order in (credentials, credentials[::-1]):
        usual = UsualIterations(lambda order=order: order, lambda: 0)  # type: ignore[misc]
        assert [usual.of(1), usual.of(2), usual.of(3)] == [8192, 5000, MIN_ITERATIONS]


def test_they_are_counted_once_for_each_version() -> None:
    """Users are counted once for each version: without changes, a login costs one comparison."""
    credentials, asked, versions = stored(1, 8192), [], [1]

    def count() -> list[UserScramCredentialRecord]:
        asked.append(versions[-1])
        return credentials

    usual = UsualIterations(count, lambda: versions[-1])
    assert [usual.of(1), usual.of(1), usual.of(2)] == [8192, 8192, MIN_ITERATIONS]
    credentials.clear()
    versions.append(2)
    assert [usual.of(1), usual.of(1)] == [MIN_ITERATIONS, MIN_ITERATIONS]
    assert asked == [1, 2]
