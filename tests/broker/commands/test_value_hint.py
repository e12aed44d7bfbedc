"""A configuration's value with a unit: the error says which number was meant."""

from __future__ import annotations

import pytest

from diamant.broker.commands.settings.value_hint import with_hint
from diamant.broker.config.config_key import ConfigError
from diamant.broker.config.topic_table import TOPIC_CONFIGS


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("segment.ms", "1h", "It is in milliseconds: 1h is 3600000"),
        ("retention.ms", " 7 d ", "It is in milliseconds: 7d is 604800000"),
        ("segment.ms", "1.5min", "It is in milliseconds: 1.5min is 90000"),
        ("segment.bytes", "64MiB", "It is in bytes: 64MiB is 67108864 (1024 bytes to the KiB)"),
        ("segment.bytes", "1g", "It is in bytes: 1g is 1073741824 (1024 bytes to the KiB)"),
        ("min.cleanable.dirty.ratio", "50%", "It is a share: 50% is 0.5"),
    ],
)
def test_a_value_with_a_unit(name: str, text: str, hint: str) -> None:
    """Kafka's sentence comes first, as tools have it from a broker; the number taken from the hint is a value."""
    with pytest.raises(ConfigError) as caught:
        TOPIC_CONFIGS[name].parse(text)
    told = with_hint(caught.value)
    assert told == f"{caught.value}. {hint}"
    assert TOPIC_CONFIGS[name].parse(hint.rsplit(" is ", 1)[1].split()[0]) is not None


@pytest.mark.parametrize(
    ("name", "text"), [("segment.ms", "soon"), ("segment.ms", "1MB"), ("segment.ms", "-5"), ("cleanup.policy", "1h")]
)
def test_other_values(name: str, text: str) -> None:
    """Nobody knows what was meant, so nothing is added."""
    with pytest.raises(ConfigError) as caught:
        TOPIC_CONFIGS[name].parse(text)
    assert with_hint(caught.value) == str(caught.value)
