"""Texts as tokenizers take them."""


def encodable(text: str) -> str:
    """The text with "?" for each lone surrogate, which UTF-8 has no bytes for.

    A policy's JSON and a data set's can name one, and tokenizers raises TypeError for it.
    """
    return text.encode("utf-8", "replace").decode("utf-8")
