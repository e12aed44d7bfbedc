"""The release: wheels for each machine and the sources (`make dist`), images (`make image-check`), pages (`make docs`)."""
