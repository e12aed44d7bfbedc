"""The broker. This folder contains its composition root and its command line; the subfolders contain everything else."""
