"""The search of files and records for needles, and the proof that it finds them."""
