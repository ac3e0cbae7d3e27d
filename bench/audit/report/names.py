"""What things are called in the report: outcomes, arms, links, strata; and text made harmless."""

from __future__ import annotations

import unicodedata

from kvrelay.bench.audit.report.numbers import tokens
from kvrelay.bench.audit.report.reading import SAME_NODE, Stratum, bits_per_s

_OUTCOMES = {
    "ttft_s": "TTFT",
    "e2e_s": "end-to-end time",
    "session_s": "session time",
    "tokens_per_s": "throughput",
    "prefill_s": "prefill computation",
    "wire_s": "time on the wire",
    "bytes_moved": "bytes moved",
    "kv_bytes": "KV memory of the engines",
    "memory_bytes": "process memory",
    "relay_cpu_s": "CPU time of relay work",
    "relayed_tokens": "relayed tokens",
    "agreement": "greedy agreement",
    "logprob_drift": "logprob drift (lower bound)",
    "perplexity": "perplexity",
    "bleu": "BLEU",
    "rouge_l": "ROUGE-L",
    "correct": "right answers",
    "failed": "failed requests",
}
_ARMS = {
    "recompute": "recompute",
    "lookup_only": "lookup only",
    "pull_and_discard": "pull and discard",
    "relay": "relay",
    "policy": "relay where the cost policy says so",
    "owner_affinity": "send it to the owner",
    "shared_pool": "one shared engine pool",
    "text_only": "text instead of KV",
    "relay_raw": "relay, raw",
    "relay_lz4": "relay, lz4",
    "relay_split": "relay a part, compute the rest",
}
_LANGUAGES = {"en": "English", "zh": "Chinese"}
_UNSAFE = {"Cc", "Cs", "Co", "Cn"}
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """One line of text that no file format stumbles over: no control characters, no surrogates."""
    return "".join(_character(each) for each in text)


def outcome_words(outcome: str) -> str:
    """What an outcome is called."""
    return _OUTCOMES.get(outcome, clean(outcome))


def arm_words(arm: str) -> str:
    """What an arm is called."""
    return _ARMS.get(arm, clean(arm))


def sentence(words: str) -> str:
    """Words that begin a sentence; capitals within them stay."""
    return words[:1].upper() + words[1:]


def link_words(link: str) -> str:
    """ "same node", "100 Mbit/s"."""
    if link == SAME_NODE:
        return "same node"
    if bits_per_s(link) is not None:
        letter = link[-4]
        return f"{link[:-4]}\u00a0{letter if letter == 'k' else letter.upper()}bit/s"
    return clean(link)


def stratum_words(stratum: Stratum, *, link: bool = True, length: bool = True) -> str:
    """ "same node, high similarity, English, idle, 2,048 tokens"."""
    parts = [link_words(stratum.link)] if link or stratum.tokens is None else []
    if stratum.tokens is not None:
        parts += [
            f"{clean(stratum.similarity)} similarity",
            _LANGUAGES.get(stratum.language, clean(stratum.language)),
            clean(stratum.load),
        ]
        parts += [tokens(stratum.tokens)] if length else []
    return ", ".join(parts)


def _character(each: str) -> str:
    if each in "\t\n\r\u2028\u2029":
        return " "
    return "\ufffd" if unicodedata.category(each) in _UNSAFE or each in _TURNS else each
