"""The engines that execute rounds, one in Python and one compiled, and the offset map of the compiled one."""
