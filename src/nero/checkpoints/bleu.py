"""How near translations are to their references. The paper has no such number: it stops at perplexity."""

from typing import Any

from nero.checkpoints.loading import Unusable


def bleu_metric() -> Any:
    """sacrebleu's BLEU in lower case, since all that is learnt is; Unusable without sacrebleu."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise Unusable(
            "BLEU needs sacrebleu, which is not installed; get it with: pip install 'nero[translate]'"
        ) from error
    return BLEU(lowercase=True)
