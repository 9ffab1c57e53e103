#!/usr/bin/env python3
"""Renders conversations.json with every *.jinja file here through the real Jinja2, in Hugging Face's environment.

The outputs in expected/ are what the Rust renderer must equal, byte for byte. Needs: pip install jinja2
"""
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Generation(jinja2.ext.Extension):
    """`{% generation %}` as Hugging Face has it: its body, unchanged."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], [], lineno=line)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception


def wire(message):
    message = dict(message)
    if "tool_calls" in message:
        message["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": json.loads(c["arguments"])}}
            for c in message["tool_calls"]
        ]
    return message


(HERE / "expected").mkdir(exist_ok=True)
for path in sorted(HERE.glob("*.jinja")):
    template = environment.from_string(path.read_text())
    rendered = {}
    for name, talk in json.loads((HERE / "conversations.json").read_text()).items():
        tools = [{"type": "function", "function": tool} for tool in talk.get("tools", [])] or None
        try:
            rendered[name] = template.render(
                messages=[wire(m) for m in talk["messages"]],
                tools=tools,
                documents=None,
                add_generation_prompt=talk.get("add_generation_prompt", True),
                bos_token="<s>",
                eos_token="<|im_end|>",
            )
        except jinja2.exceptions.TemplateError as error:
            rendered[name] = {"raises": str(error)}
    target = HERE / "expected" / f"{path.stem}.json"
    target.write_text(json.dumps(rendered, ensure_ascii=False, indent=1) + "\n")
