"""The cleaner: what to remove or rewrite, and when. Decisions do no I/O; kernels are compiled on demand."""
