"""Access to the operating system (real or overlaid): files, clocks, locks."""
