"""Sixty turns with the official client through a window that they pass more than twice, with a restart in the middle.

Arguments: the program, a simulation script, a data folder.
"""

import json
import signal
import subprocess
import sys
import urllib.request

import openai

PROGRAM, SCRIPT, DATA = sys.argv[1:4]
TURNS = 60
WINDOW = 65536


class Server:
    def __init__(self):
        command = [PROGRAM, "serve", "--port", "0", "--data-dir", DATA, "--simulate", SCRIPT]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline().strip()
        assert line.startswith("listening "), line
        self.url = line.removeprefix("listening ")
        assert self.process.stdout.readline().startswith("ready ")
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60)

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=30) == 0


def ask(server, messages, stream):
    create = server.client.chat.completions.create
    if not stream:
        answer = create(model="scripted", messages=messages)
        return answer.choices[0].message.content, answer.model_extra["context"]
    text, context = "", None
    for chunk in create(model="scripted", messages=messages, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
        context = (chunk.model_extra or {}).get("context") or context
    return text, context


server = Server()
messages = [{"role": "system", "content": "You keep notes. " * 40}]
total = 0
seen = []
try:
    for turn in range(TURNS):
        if turn == TURNS // 2:
            before = server.get("/v1/sessions/" + context["session"])
            server.stop()
            server = Server()
            after = server.get("/v1/sessions/" + context["session"])
            for key in ("messages", "effective", "compactions", "turns"):
                assert before[key] == after[key], key
        content = f"Turn {turn} is about src/part_{turn}.rs. " * 80
        total += len(content)
        messages.append({"role": "user", "content": content})
        text, context = ask(server, messages, stream=turn % 2 == 1)
        assert text == "Noted.", text
        messages.append({"role": "assistant", "content": text})
        assert context["prompt"] + context["completion"] < WINDOW, context
        if turn == TURNS // 2:
            assert context["compactions"] == len([r for r in before["compactions"] if r["state"] == "replaced"])
        seen.append(context["session"])
    assert len(set(seen)) == 1, "one conversation is one session"
    assert total > 2 * WINDOW, total
    session = server.get("/v1/sessions/" + context["session"])
    records = session["compactions"]
    assert len(records) >= 2 and all(record["state"] == "replaced" for record in records), records
    assert context["compactions"] == len(records)
    spans = [record["span"]["end"] for record in records]
    assert len(set(spans)) == len(spans), "no span is summarised twice"
    turns = [record["span"]["turns"] for record in records]
    assert turns == sorted(turns) and len(set(turns)) == len(turns)
    assert session["turns"] == 2 * TURNS
    assert len(server.get("/v1/sessions")["data"]) == 1
finally:
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=30)
print("all passed:", len(records), "compactions,", total, "bytes said")
