"""The release: wheels with kernels for each machine, the source distribution (`make dist`), and images (`make image-check`)."""
