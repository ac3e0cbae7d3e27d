"""Strata: the conditions under which arms are compared, each a name of its own."""

from __future__ import annotations

from dataclasses import dataclass

FACTORS = ("link", "tokens", "load", "similarity", "language")


@dataclass(frozen=True, slots=True, order=True)
class Stratum:
    """One combination of the factors.

    Attributes:
        link: between A and B: `same-node`, or a wire such as `1gbit`.
        tokens: nominal length of the prompts.
        load: `idle`, one request at a time; `busy`, they come while others are served.
        similarity: of B's prompt to A's: `high`, `medium`, `low`.
        language: of the text.
    """

    link: str
    tokens: int
    load: str
    similarity: str
    language: str

    @property
    def name(self) -> str:
        """`same-node/512/idle/high/en`."""
        return "/".join(str(getattr(self, factor)) for factor in FACTORS)

    @classmethod
    def parse(cls, name: str) -> Stratum:
        """The stratum of a name.

        Raises:
            ValueError: it is none.
        """
        link, tokens, load, similarity, language = name.split("/")
        return cls(link, int(tokens), load, similarity, language)

    def factors(self) -> dict[str, str | int]:
        """As columns of a row."""
        return {factor: getattr(self, factor) for factor in FACTORS}
