"""Access to the operating system (real, in memory or overlaid): files, clocks, locks."""
