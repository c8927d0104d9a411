"""A small streaming server that misbehaves on request: `python smoke_server.py '{"fault": "die", ...}'`.

It prints its port on stdout. Time to first token and time between chunks are known (ground truth).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import ssl
import sys
import time
from typing import Any


class Server:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.ttft_s = plan.get("ttft_s", 0.005)
        self.itl_s = plan.get("itl_s", 0.001)
        self.per_chunk = plan.get("per_chunk", 1)
        self.at = plan.get("at", 4)  # the fault starts with this many requests in flight
        self.fault = plan.get("fault", "")
        self.routes = plan.get("routes", ["generate", "chat", "completions"])
        self.running = 0
        self.served = 0
        self.hung = False

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        length = 0
        key = ""
        for line in head.split("\r\n"):
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
            if name.lower() == "authorization":
                key = value.strip()
        body = json.loads(await reader.readexactly(length)) if length else {}
        if self.plan.get("key") and key != f"Bearer {self.plan['key']}":
            return self.reply(writer, 401, {"error": {"message": "invalid key"}})
        if method == "GET":
            return self.get(writer, path)
        api = {"/generate": "generate", "/v1/chat/completions": "chat"}.get(path, "completions")
        if api not in self.routes:
            return self.reply(writer, 404, {"detail": "Not Found"})
        if not body:
            return self.reply(writer, 400, {"error": {"message": "empty"}})
        self.running += 1
        try:
            return await self.generate(writer, api, body)
        finally:
            self.running -= 1
            self.served += 1

    def get(self, writer: asyncio.StreamWriter, path: str) -> bool:
        if path == "/server_info" and self.plan.get("info") is not None:
            return self.reply(writer, 200, self.plan["info"])
        if path == "/v1/models" and self.plan.get("model"):
            return self.reply(writer, 200, {"data": [{"id": self.plan["model"]}]})
        if path == "/get_load" and "live" in self.plan:
            return self.reply(writer, 200, [{"dp_rank": 0, "num_reqs": self.plan["live"]}])
        if path == "/metrics" and "live_metrics" in self.plan:
            text = f'sglang:num_running_reqs{{model="m"}} {self.plan["live_metrics"]}\n'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text))
            writer.write(text.encode())
            return True
        return self.reply(writer, 404, {"detail": "Not Found"})

    def reply(self, writer: asyncio.StreamWriter, status: int, body: Any) -> bool:
        raw = json.dumps(body).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        return True

    async def generate(self, writer: asyncio.StreamWriter, api: str, body: dict[str, Any]) -> bool:
        fault = self.fault if self.running >= self.at else ""
        if self.plan.get("model") and api != "generate" and body["model"] != self.plan["model"]:
            return self.reply(writer, 404, {"error": {"message": "The model does not exist."}})
        if fault == "die":
            await asyncio.sleep(self.ttft_s)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in ("500", "503", "400"):
            return self.reply(writer, int(fault), {"error": {"message": f"planned {fault}"}})
        if fault == "hang":
            self.hung = True
        if self.hung:
            await asyncio.sleep(3600)
        wanted = body.get("max_tokens") or body["sampling_params"]["max_new_tokens"]
        words = self.words(body, wanted, fault)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        start = time.perf_counter() + self.ttft_s
        for number, count in enumerate(range(0, len(words), self.per_chunk)):
            await asyncio.sleep(max(0.0, start + number * self.itl_s - time.perf_counter()))
            end = min(count + self.per_chunk, len(words))
            if fault == "cut" and number == 3:
                writer.transport.abort()
                return False
            if fault == "clean-end" and number == 3:
                writer.write(b"0\r\n\r\n")
                return True
            if fault == "error" and number == 3:
                self.event(writer, {"error": {"message": "planned error", "code": 500}})
                break
            if fault == "freeze" and number == 3:
                self.hung = True
                await asyncio.sleep(3600)
            last = end == len(words)
            self.event(writer, self.chunk(api, words, count, end, last, fault))
        if api != "generate" and not self.plan.get("no_usage"):
            self.event(
                writer,
                {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(words)}},
            )
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        return True

    def words(self, body: dict[str, Any], wanted: int, fault: str) -> list[str]:
        if fault == "mush":
            return ["!"] * wanted
        prompt = json.dumps(
            body.get("input_ids") or body.get("text") or body.get("prompt") or body.get("messages")
        )
        salt = "wrong" if fault == "wrong" else ""
        if self.plan.get("random"):
            salt = os.urandom(4).hex()
        digest = hashlib.sha256((prompt + salt).encode()).hexdigest()
        count = wanted - 5 if fault == "short" else wanted
        return [f" {digest[i % 60 : i % 60 + 4]}" for i in range(count)]

    def chunk(
        self, api: str, words: list[str], start: int, end: int, last: bool, fault: str
    ) -> dict[str, Any]:
        finish = ("abort" if fault == "abort" else "length") if last else None
        if api == "generate":
            body: dict[str, Any] = {
                "text": "".join(words[:end]),
                "meta_info": {
                    "prompt_tokens": 9,
                    "completion_tokens": end,
                    "finish_reason": {"type": finish} if finish else None,
                },
            }
            if self.plan.get("ids"):
                del body["text"]
                body["output_ids"] = [int(w.strip(), 16) for w in words[:end]]
            return body
        text = "".join(words[start:end])
        if api == "chat":
            return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
        return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}

    def event(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        raw = b"data: " + json.dumps(body).encode() + b"\n\n"
        writer.write(b"%x\r\n" % len(raw) + raw + b"\r\n")


async def main() -> None:
    plan = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    context = None
    if "certificate" in plan:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*plan["certificate"])
    server = await asyncio.start_server(
        Server(plan).connection, "127.0.0.1", plan.get("port", 0), backlog=1024, ssl=context
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
