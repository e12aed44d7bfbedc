"""Record batches: header, records, old formats, codecs, and a leader's validation."""
