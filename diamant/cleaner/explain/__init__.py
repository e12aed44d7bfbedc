"""Why a record is still there, and until when."""
