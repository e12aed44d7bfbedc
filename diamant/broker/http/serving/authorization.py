"""Authorization of HTTP requests, by the authorizer of Kafka's requests. Without one, all tokens allow everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diamant.broker.acl import CLUSTER_NAME, ResourceType
from diamant.broker.http.serving.token import Caller
from diamant.broker.security.authorization import needs
from diamant.broker.security.authorization.authorizer import Authorizer
from diamant.broker.security.authorization.needs import Need


def denial(
    authorizer: Authorizer | None,
    caller: Caller,
    host: str,
    verb: str,
    all_needs: Sequence[Need],
    named: Mapping[str, Any],
) -> str | None:
    """Return the sentence that denies a verb; None if it is allowed. `named`: the fields of the path, the query and the body."""
    if authorizer is None or caller.may_everything:
        return None
    sentences = (_denied(authorizer, caller, host, verb, need, name) for need, name in _asked(all_needs, named))
    return next((one for one in sentences if one is not None), None)


def denial_in_any_case(
    authorizer: Authorizer | None,
    caller: Caller,
    host: str,
    verb: str,
    all_needs: Sequence[Need],
    names: Mapping[str, str],
) -> str | None:
    """Return the sentence that denies a verb whatever the query and the body may say; None if something may be allowed.

    `names`: those in the path. Nothing else of the request need be read.
    """
    if authorizer is None or caller.may_everything:
        return None
    client = caller.principal, host
    for need in all_needs:
        kind = need.resource.name.lower()
        name = CLUSTER_NAME if need.resource is ResourceType.CLUSTER else names.get(kind)
        if name is not None:
            sentence = _denied(authorizer, caller, host, verb, need, name)
        elif authorizer.decide_any(client, need, authorizer.decisions(client, need)):
            continue
        else:
            authorizer.denied(client, need, "*")
            sentence = f"{caller.principal} may not: {verb} needs {need.operation.name} on a {kind}"
        if sentence is not None:
            return sentence
    return None


def may_know(authorizer: Authorizer | None, caller: Caller, host: str, topic: str) -> bool:
    """True if the caller may DESCRIBE a topic, so that a response may name it. Omitted topics are not logged as denials."""
    if authorizer is None or caller.may_everything:
        return True
    return authorizer.would_allow((caller.principal, host), needs.DESCRIBE_TOPIC, topic)


def topics_of(named: Mapping[str, Any]) -> list[str]:
    """Return the topics that a request names."""
    topics = named.get("topics")
    one = named.get("topic")
    return [*(topics if isinstance(topics, list | tuple) else ()), *([one] if isinstance(one, str) else ())]


def _denied(authorizer: Authorizer, caller: Caller, host: str, verb: str, need: Need, name: str) -> str | None:
    if authorizer.allows((caller.principal, host), need, name):
        return None
    where = "the cluster" if need.resource is ResourceType.CLUSTER else f"{need.resource.name.lower()} {name!r}"
    return f"{caller.principal} may not: {verb} needs {need.operation.name} on {where}"


def _asked(all_needs: Sequence[Need], named: Mapping[str, Any]) -> Iterator[tuple[Need, str]]:
    for need in all_needs:
        if need.resource is ResourceType.CLUSTER:
            yield need, CLUSTER_NAME
            continue
        is_group = need.resource is ResourceType.GROUP
        names = [named["group"]] if is_group and "group" in named else topics_of(named)
        for name in names:
            yield need, name
        if not names:  # without a name the request concerns all
            yield needs.ALTER_CLUSTER, CLUSTER_NAME
