"""Operations on pending jobs of any kind: their list, and their cancellation."""
