"""The embedded default: data sets made up from a seed, with structure to learn and nothing to download.

The same seed gives the same data, to the bit; seed 0 is a seed like any other.
"""

from nero.data.synthetic.digits import digits
from nero.data.synthetic.english import grammar_text
from nero.data.synthetic.shapes import shapes
from nero.data.synthetic.translation import translation_pairs

__all__ = ["digits", "grammar_text", "shapes", "translation_pairs"]
