"""The engines that execute rounds: the plain one in Python, the compiled one, and the offset map."""
