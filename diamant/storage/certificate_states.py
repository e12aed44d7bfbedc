"""The states of certificates: their claims. A state stands in the certificate, in answers and reports, and in the file's name."""

VALUES_GONE = "values-gone"
"""Of an erasure: no value of the key is left. A tombstone names the key until its horizon."""
KEY_GONE = "key-gone"
"""Of an erasure: no record with the key is left."""
RECORDS_GONE = "records-gone"
"""Of a redaction: no record that matches is left."""
FIELDS_BLANKED = "fields-blanked"
"""Of a redaction: the fields of all records that match are blank."""
NOTHING_MATCHED = "nothing-matched"
"""Nothing in the topics matched, so nothing was removed. A mistyped request gives the same state."""
NOT_CERTIFIED = "not-certified"
"""There are claims for no partition, or not for all."""
FORGOTTEN = "forgotten"
"""Of a person's request: everything is gone."""
FORGOTTEN_BUT_KEPT = "forgotten-but-kept"
"""Of a person's request: everything is gone but for what is kept on a ground."""

LAST_STATES = (KEY_GONE, RECORDS_GONE, FIELDS_BLANKED, NOTHING_MATCHED, FORGOTTEN, FORGOTTEN_BUT_KEPT)
"""The states of final certificates: the intent is removed with them."""
CERTIFICATE_STATES = (*LAST_STATES, VALUES_GONE, NOT_CERTIFIED)
"""All of them."""
