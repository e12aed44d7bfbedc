"""The commands of `diamant` besides `start`, one file each. A file is imported when its command is run."""
