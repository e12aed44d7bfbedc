"""The release: wheels with kernels for each machine, and the source distribution (`make dist`)."""
