"""The append-only layout and the pipeline, with a tokenizer and an endpoint made up here."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvrelay.agents.errors import WorkflowError
from kvrelay.agents.layout import ChatLayout
from kvrelay.agents.workflow import Pipeline, Step

END = 1  # the end-of-turn token
SPECIAL = {"<s>": 0, "<e>": END}


class CharTokenizer:
    """One token per character, and two special tokens; ChatML's shape."""

    def __init__(self, rewrites: bool = False) -> None:
        self._rewrites = rewrites

    def encode(
        self, text: str, add_special_tokens: bool, split_special_tokens: bool = False
    ) -> list[int]:
        assert not add_special_tokens
        ids = []
        while text:
            special = next((s for s in SPECIAL if text.startswith(s)), None)
            if special is not None and not split_special_tokens:
                ids.append(SPECIAL[special])
                text = text[len(special) :]
            else:
                ids.append(ord(text[0]))
                text = text[1:]
        return ids

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(token) for token in ids if token > END)

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        turns = [f"<s>{m['role']}:{m['content']}<e>\n" for m in messages]
        if self._rewrites and len(turns) > 1:
            turns[0] = turns[0].upper()
        return "".join(turns) + "<s>assistant:"


class Endpoint:
    """Answers every request with the next letters of the alphabet; remembers the prompts."""

    def __init__(self, eos_after: int | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self.completions = self
        self._eos_after = eos_after
        self._next = ord("a")

    def create(self, **request: Any) -> Any:
        self.requests.append(request)
        ids = []
        for _ in range(request["max_tokens"]):
            ids.append(self._next)
            self._next += 1
        reason = "length"
        if self._eos_after is not None and request["max_tokens"] > self._eos_after:
            ids, reason = [*ids[: self._eos_after], END], "stop"
        record = {
            "local_tokens": 0,
            "relayed_tokens": 4,
            "recomputed_tokens": len(request["prompt"]) - 4,
            "reason": "relayed",
        }
        return SimpleNamespace(
            choices=[SimpleNamespace(finish_reason=reason, model_extra={"token_ids": ids})],
            model_extra={"kv_transfer_params": {"kvrelay": record}},
        )


def text_of(ids: Any) -> str:
    names = {token: special for special, token in SPECIAL.items()}
    return "".join(names.get(token) or chr(token) for token in ids)


def run(endpoint: Endpoint, steps: list[Step], **options: Any) -> list[Any]:
    client: Any = endpoint
    return Pipeline(steps, client, ChatLayout(CharTokenizer())).run("Text", **options)


def test_each_prompt_begins_with_all_that_was_read_and_written() -> None:
    first, second = run(Endpoint(), [Step("a", "One", 3), Step("b", "Two", 3)])
    assert text_of(first.prompt) == "<s>user:Text\n\nOne<e>\n<s>assistant:"
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert text_of(second.prompt[len(first.prompt) :]) == "abc<e>\n<s>user:Two<e>\n<s>assistant:"


def test_an_end_of_turn_that_was_generated_is_not_doubled() -> None:
    first, second = run(Endpoint(eos_after=2), [Step("a", "One", 9), Step("b", "Two", 1)])
    assert first.output == (ord("a"), ord("b"), ord("c"), END)
    assert text_of(second.prompt[len(first.prompt) :]).startswith("abc<e>\n<s>user:Two")


def test_special_tokens_in_a_text_stay_text() -> None:
    layout = ChatLayout(CharTokenizer())
    assert END not in layout.encode("end<e>")


def test_a_step_of_one_token_is_one_request() -> None:
    endpoint = Endpoint()
    (result,) = run(endpoint, [Step("a", "One", 1)])
    assert len(endpoint.requests) == 1
    assert result.output == (ord("a"),)
    assert result.reason == "relayed"
    assert result.prompt_tokens == result.relayed_tokens + result.recomputed_tokens


def test_each_step_says_who_takes_the_next_one() -> None:
    endpoint = Endpoint()
    run(endpoint, [Step("a", "One", 2), Step("b", "Two", 2)])
    controls = [each["extra_body"]["kv_transfer_params"]["kvrelay"] for each in endpoint.requests]
    assert [each.get("next") for each in controls] == ["b", "b", None, None]
    assert {each["mode"] for each in controls} == {"auto"}


def test_replay_makes_the_same_prompts_whatever_comes_out() -> None:
    steps = [Step("a", "One", 2), Step("b", "Two", 2)]
    endpoint = Endpoint()
    before = run(endpoint, steps)
    after = run(endpoint, steps, relay=False, cache_salt="other", replay=before)
    assert [r.prompt for r in after] == [r.prompt for r in before]
    assert after[0].output != before[0].output
    body = endpoint.requests[-1]["extra_body"]
    assert body["kv_transfer_params"] == {"kvrelay": {"mode": "recompute"}}
    assert body["cache_salt"] == "other"


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    with pytest.raises(WorkflowError, match="changes earlier turns"):
        ChatLayout(CharTokenizer(rewrites=True))


def test_impossible_pipelines() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Step("a", "One", 0)
    with pytest.raises(ValueError, match="at least one step"):
        run(Endpoint(), [])
