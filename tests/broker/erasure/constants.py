"""The key to erase, its value, and times, for tests of erasures."""

from __future__ import annotations

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
RETRY_MS = 60_000
KEY = b"customer-42"
PERSON = b'{"name": "Anna Schmidt", "city": "Bern"}'
HTTP = {"diamant.http.listen": "127.0.0.1:0"}
