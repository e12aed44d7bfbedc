"""Operations on records: count, explain, find, produce."""
