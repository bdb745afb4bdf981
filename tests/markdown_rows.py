"""Tables in Markdown, read back."""


def markdown_rows(text: str) -> list[list[str]]:
    """The words of every line of every table, the rules under their heads included."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[word.strip() for word in line.strip("|").split("|")] for line in lines]
