"""Record batches: header, records, old formats, codecs, and what a leader validates."""
