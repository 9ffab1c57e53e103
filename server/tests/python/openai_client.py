"""The official client against scripted servers. Argument: JSON object of base URLs. Prints "all passed" at the end."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import openai

URLS = json.loads(sys.argv[1])
TEXT = "Grüße, 世界! 👩‍🚀 One two STOP three."
HI = [{"role": "user", "content": "Hi"}]


def client(name, key="none"):
    return openai.OpenAI(base_url=URLS[name], api_key=key, max_retries=0, timeout=60)


def whole(**extra):
    return client("plain").chat.completions.create(model="scripted", messages=HI, **extra)


def chunks(name="plain", messages=HI, **extra):
    stream = client(name).chat.completions.create(
        model="scripted", messages=messages, stream=True, stream_options={"include_usage": True}, **extra
    )
    return list(stream)


def text_of(parts, index=0):
    deltas = (c.delta for part in parts for c in part.choices if c.index == index)
    return "".join(delta.content or "" for delta in deltas)


def a_whole_answer():
    answer = whole()
    assert answer.choices[0].message.content == TEXT, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens == len(TEXT.encode()) + 1
    assert answer.context["window"] == 8192


def a_stream_equals_the_whole_answer():
    for extra in ({}, {"stop": "STOP"}, {"max_tokens": 9}, {"stop": ["two", "STOP"], "seed": 7}, {"temperature": 0}):
        one, parts = whole(**extra), chunks(**extra)
        assert text_of(parts) == one.choices[0].message.content, extra
        ends = [c.finish_reason for part in parts for c in part.choices if c.finish_reason]
        assert ends == [one.choices[0].finish_reason], extra
        ones, streamed = one.usage, parts[-1].usage
        assert ones.completion_tokens == streamed.completion_tokens, extra
        assert ones.prompt_tokens == streamed.prompt_tokens, extra
        assert all(part.usage is None for part in parts[:-1])
        assert len({part.id for part in parts}) == 1


def stop_strings_cut():
    assert whole(stop="STOP").choices[0].message.content == TEXT.split("STOP")[0]


def the_limit_of_a_reply():
    answer = whole(max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def log_probabilities():
    answer = whole(logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in content) == TEXT.encode()
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content)
    streamed = [
        token
        for part in chunks(logprobs=True, top_logprobs=3)
        for choice in part.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    assert [token.bytes for token in streamed] == [token.bytes for token in content]


def several_choices():
    answer = whole(n=4, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.message.content == TEXT for choice in answer.choices)
    parts = chunks(n=4)
    assert all(text_of(parts, index) == TEXT for index in range(4))


def a_seed_makes_replies_repeatable():
    replies = {whole(seed=42, temperature=1).choices[0].message.content for _ in range(3)}
    assert len(replies) == 1


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]


def tools_are_called():
    answer = client("tools").chat.completions.create(model="scripted", messages=HI, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", answer
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "time"]
    assert json.loads(calls[0].function.arguments) == {"city": "Zürich", "days": 3}
    assert len({call.id for call in calls}) == 2
    assert choice.message.content.strip() == "Let me look."

    streamed = {}
    parts = chunks("tools", tools=TOOLS)
    for part in parts:
        for piece in part.choices:
            for call in piece.delta.tool_calls or []:
                entry = streamed.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                entry["id"] += call.id or ""
                entry["name"] += (call.function.name or "") if call.function else ""
                entry["arguments"] += (call.function.arguments or "") if call.function else ""
    assert [streamed[i]["name"] for i in (0, 1)] == ["weather", "time"]
    assert json.loads(streamed[0]["arguments"]) == {"city": "Zürich", "days": 3}
    assert text_of(parts) == choice.message.content

    one = client("tools").chat.completions.create(
        model="scripted", messages=HI, tools=TOOLS, parallel_tool_calls=False
    )
    assert len(one.choices[0].message.tool_calls) == 1
    assert one.choices[0].finish_reason == "tool_calls"

    history = HI + [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"},
        {"role": "tool", "tool_call_id": calls[1].id, "content": [{"type": "text", "text": "noon"}]},
    ]
    again = client("tools").chat.completions.create(model="scripted", messages=history, tools=TOOLS)
    assert again.context["session"] == one.context["session"], "the conversation is recognised"


def eight_clients_at_once():
    def one(number):
        if number % 2:
            return text_of(chunks(seed=number))
        return whole(seed=number).choices[0].message.content

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(24))) == {TEXT}


def raw_completions():
    answer = client("plain").completions.create(model="scripted", prompt=["a", "b"], max_tokens=5, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(answer.choices[0].logprobs.tokens) == 5
    parts = client("plain").completions.create(model="scripted", prompt="a", stream=True)
    assert "".join(choice.text for part in parts for choice in part.choices) == TEXT


def models():
    assert [model.id for model in client("plain").models.list()] == ["scripted"]
    assert client("plain").models.retrieve("scripted").id == "scripted"


def fails(kind, code, call):
    try:
        call()
    except kind as error:
        assert error.code == code, (error.code, code)
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def errors_are_mapped():
    create = client("plain").chat.completions.create
    fails(openai.NotFoundError, "model_not_found", lambda: create(model="nobody", messages=HI))
    fails(openai.BadRequestError, "invalid_value", lambda: create(model="scripted", messages=[]))
    fails(openai.BadRequestError, "integer_below_min_value", lambda: create(model="scripted", messages=HI, max_tokens=0))
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    fails(openai.BadRequestError, "unsupported_value", lambda: create(model="scripted", messages=HI, response_format=schema))
    long = [{"role": "user", "content": "x" * 20000}]
    for stream in (False, True):
        error = fails(
            openai.BadRequestError,
            "context_length_exceeded",
            lambda: create(model="scripted", messages=long, stream=stream),
        )
        assert error.param == "messages" and error.body["n_ctx"] == 8192
        assert error.request_id.startswith("req_")
    fails(openai.AuthenticationError, "invalid_api_key", lambda: client("keyed", "wrong").models.list())
    assert client("keyed", "secret").models.list().data


for test in [
    a_whole_answer,
    a_stream_equals_the_whole_answer,
    stop_strings_cut,
    the_limit_of_a_reply,
    log_probabilities,
    several_choices,
    a_seed_makes_replies_repeatable,
    tools_are_called,
    eight_clients_at_once,
    raw_completions,
    models,
    errors_are_mapped,
]:
    test()
    print("ok", test.__name__)
print("all passed")
