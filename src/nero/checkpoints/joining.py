"""Words put together as they are written, for those that spaCy's English tokeniser makes of a sentence."""

from collections.abc import Sequence

TO_THE_LEFT = frozenset({".", ",", ";", ":", "!", "?", ")", "]", "'", "n't", "'s", "'re", "'ll", "'ve", "'d", "'m"})
TO_THE_RIGHT = frozenset({"(", "[", "#", "$"})
TO_BOTH = frozenset({"-"})
QUOTE = '"'


def join_words(words: Sequence[str]) -> str:
    """One line: marks next to the word that they belong to, quotation marks opened and closed in turn.

    The tokeniser tells no more of where spaces were, so that some lines come out otherwise than they were written.
    """
    text, close, quoted = "", True, False  # close: the next word comes without a space
    for word in (word for word in words if not word.isspace()):
        ends_quote = word == QUOTE and quoted
        if not (close or ends_quote or word in TO_THE_LEFT or word in TO_BOTH):
            text += " "
        text += word
        quoted ^= word == QUOTE
        close = word in TO_THE_RIGHT or word in TO_BOTH or (word == QUOTE and quoted)
    return text
