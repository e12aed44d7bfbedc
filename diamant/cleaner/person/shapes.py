"""Signs that a field is about a person: the shapes of its values, its name, and the tags of its schema.

Names are compared in lower case with underscores, both alone and joined to the name of the enclosing object, so `user.id` and
`userId` both count as `user_id`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}\.[A-Za-z]{2,}")
_PHONE = re.compile(r"(?:\+|00)[1-9][\d ()/.-]{5,24}")
_IBAN = re.compile(r"[A-Z]{2}\d{2} ?(?:[A-Z0-9]{4} ?){2,7}[A-Z0-9]{1,4}")
_LOCAL_PHONE = re.compile(r"\(?\d[\d ()/.-]{5,20}")
_PHONE_DIGITS = range(7, 16)

_NUMBER = r"_?(?:id|no|nr|num|number|nummer|key|ref|code|uuid|guid)"
_PERSON = "|".join(
    (
        *("customer", "client", "consumer", "member", "subscriber", "buyer", "payer", "patient", "employee", "person"),
        *("contact", "guest", "user", "student", "driver", "kunde", "kunden"),
    )
)


class Sign(NamedTuple):
    """A kind of data about people."""

    identifier: str
    """The usual name of the identifier; empty for data that identifies no one by itself."""
    category: str
    """The category in Fides's taxonomy."""


EMAIL = Sign("email", "user.contact.email")
PHONE = Sign("phone", "user.contact.phone_number")
IBAN = Sign("iban", "user.financial.bank_account")
NUMBER = Sign("customer_id", "user.unique_id")

_NAMES = [
    (r"(?:e_?mail|courriel)(?:_address|_adresse)?", EMAIL),
    (r"(?:phone|mobile|telephone|telefon|handy|msisdn|cell|fax)(?:_?(?:number|no|nr|nummer))?", PHONE),
    (r"iban", IBAN),
    (r"account" + _NUMBER, Sign("account_id", "user.account")),
    (rf"(?:device|advertising|visitor|cookie){_NUMBER}|device|idfa|gaid|imei", Sign("device", "user.device.device_id")),
    (
        r"ssn|social_security(?:_number)?|passport(?:_number|_no)?|tax" + _NUMBER,
        Sign("government_id", "user.government_id"),
    ),
    (r"user_?name|login|nick_?name", Sign("username", "user.account.username")),
    (rf"(?:{_PERSON}){_NUMBER}|user|customer|client", NUMBER),
    (r"(?:first|last|full|given|family|sur|middle|display|maiden)_?name|vorname|nachname", Sign("", "user.name")),
    (rf"(?:{_PERSON}|sender|receiver|recipient)_name", Sign("", "user.name")),
    (r"birth_?(?:day|date)|date_of_birth|dob|geburtsdatum", Sign("", "user.demographic.date_of_birth")),
    (r"gender|sex", Sign("", "user.demographic.gender")),
    (r"street(?:_name|_address)?|address(?:_line_?\d?)?|strasse", Sign("", "user.contact.address.street")),
    (r"city|town|ort", Sign("", "user.contact.address.city")),
    (r"zip(?:_code)?|post(?:al)?_?code|plz", Sign("", "user.contact.address.postal_code")),
    (r"ip(?:_?address)?|remote_addr", Sign("", "user.device.ip_address")),
    (r"name", Sign("", "user.name")),
]
_BY_NAME = [(re.compile(rf"(?:.*_)?(?:{pattern})"), sign) for pattern, sign in _NAMES]
_WITHOUT_PREFIX = re.compile(r"(?:.*_)?(?:city|town|ort|name|ip)")
"""Names that may mean something else after the name of an enclosing object, as in `product_name`."""
_TAGS = [("email", EMAIL), ("phone", PHONE)]
_PERSONAL_TAGS = re.compile(r"pii|personal|gdpr|dsgvo|sensitive|private", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def sign_of_value(text: str) -> Sign | None:
    """Return the kind of data that a value looks like."""
    if "@" in text:
        return EMAIL if _EMAIL.fullmatch(text) else None
    if text[:1] in ("+", "0") and _PHONE.fullmatch(text) and _digits(text) in _PHONE_DIGITS:
        return PHONE
    return IBAN if _IBAN.fullmatch(text) else None


def sign_of_name(path: tuple[str, ...]) -> Sign | None:
    """Return the kind of data that a field's name suggests, alone or after the name of the enclosing object."""
    names = [normal_name(name) for name in path[-2:]]
    for name in dict.fromkeys((names[-1], "_".join(names))) if names else ():
        for pattern, sign in _BY_NAME:
            if pattern.fullmatch(name) and (
                name == names[-1] or not _WITHOUT_PREFIX.fullmatch(name) or sign.identifier
            ):
                return sign
    return None


def sign_of_tags(tags: tuple[str, ...]) -> Sign | None:
    """Return the kind of data that a field's tags indicate; it has no identifier if they only say that the data is personal."""
    for tag in tags:
        for word, sign in _TAGS:
            if word in tag.lower():
                return sign
    return Sign("", "user") if any(_PERSONAL_TAGS.search(tag) for tag in tags) else None


def is_local_phone(text: str) -> bool:
    """Tell whether a value may be a phone number without country code, if the field's name suggests one."""
    return _LOCAL_PHONE.fullmatch(text) is not None and _digits(text) in _PHONE_DIGITS


def normal_name(name: str) -> str:
    """Return a name in lower case, its words joined by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower()).strip("_")


def _digits(text: str) -> int:
    return sum(letter.isdigit() for letter in text)
