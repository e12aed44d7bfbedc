"""The states of a certificate, which say what it claims. The state also appears in its file name, in responses and in reports."""

VALUES_GONE = "values-gone"
"""Erasure: no value of the key is left, but a tombstone with the key remains until its delete horizon."""
KEY_GONE = "key-gone"
"""Erasure: no record with the key is left."""
RECORDS_GONE = "records-gone"
"""Redaction: no matching record is left."""
FIELDS_BLANKED = "fields-blanked"
"""Redaction: the fields are blank in all matching records."""
NOTHING_MATCHED = "nothing-matched"
"""Nothing in the topics matched, so nothing was removed. A mistyped request ends in the same state."""
NOT_CERTIFIED = "not-certified"
"""At least one partition could not be certified."""
FORGOTTEN = "forgotten"
"""A person's request: all of the person's data is gone."""
FORGOTTEN_BUT_KEPT = "forgotten-but-kept"
"""A person's request: all of the person's data is gone, except data kept on a stated ground."""

LAST_STATES = (KEY_GONE, RECORDS_GONE, FIELDS_BLANKED, NOTHING_MATCHED, FORGOTTEN, FORGOTTEN_BUT_KEPT)
"""The states of final certificates. When a final certificate is written, the intent is removed."""
CERTIFICATE_STATES = (*LAST_STATES, VALUES_GONE, NOT_CERTIFIED)
"""All states."""
