"""The numbers that kernels share with their callers; the build makes constants of C of them."""
