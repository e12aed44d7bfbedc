"""Control of the brokers in one process: taking them down and up, making them lag, and moving partition leaders."""
