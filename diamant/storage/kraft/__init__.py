"""The metadata log and the image that its records make."""
