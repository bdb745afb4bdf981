"""What stops a bundle from being made."""


class Refusal(RuntimeError):
    """The bundle cannot be made as asked; the message is one line that says why."""
