"""The numbers that kernels share with their callers; the build turns them into C constants."""
