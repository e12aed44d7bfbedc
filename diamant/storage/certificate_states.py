"""The states of certificates, which tell what they claim. A certificate, its file name, responses and reports have the state."""

VALUES_GONE = "values-gone"
"""Erasure: no value of the key is left. A tombstone names the key until its delete horizon."""
KEY_GONE = "key-gone"
"""Erasure: no record with the key is left."""
RECORDS_GONE = "records-gone"
"""Redaction: no record that matches is left."""
FIELDS_BLANKED = "fields-blanked"
"""Redaction: the fields of all records that match are blank."""
NOTHING_MATCHED = "nothing-matched"
"""Nothing in the topics matched, so nothing was removed. A mistyped request gives the same state."""
NOT_CERTIFIED = "not-certified"
"""Some or all partitions have no claim."""
FORGOTTEN = "forgotten"
"""A person's request: all data of the person are gone."""
FORGOTTEN_BUT_KEPT = "forgotten-but-kept"
"""A person's request: all data of the person are gone, except data kept on a stated ground."""

LAST_STATES = (KEY_GONE, RECORDS_GONE, FIELDS_BLANKED, NOTHING_MATCHED, FORGOTTEN, FORGOTTEN_BUT_KEPT)
"""The states of final certificates, with which the intent is removed."""
CERTIFICATE_STATES = (*LAST_STATES, VALUES_GONE, NOT_CERTIFIED)
"""All states."""
