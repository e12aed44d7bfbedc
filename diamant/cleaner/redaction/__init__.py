"""Redactions on disk: the `where` language, the search for records, the rewriting of segments, and the certificate's claims."""
