"""Types of the public interface, checked by mypy."""
