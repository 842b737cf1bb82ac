#!/usr/bin/env python3
"""A stand-in for a language model. It answers in words, and reports how many tokens that took.

    model.py [PORT]

An answer has as many words as the prompt asks for ("... in 40 words"), but at most max_tokens. A
prompt with the word "fail" gets an error.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"]
        if "fail" in prompt.split():
            return self.answer(500, {"error": {"message": "the model is unwell"}})
        wanted = re.search(r"in (\d+) words", prompt)
        words = min(int(wanted.group(1)) if wanted else 12, body.get("max_tokens", 1000))
        prompt_tokens = len(prompt.split())
        self.answer(
            200,
            {
                "choices": [{"message": {"role": "assistant", "content": "word " * words}}],
                "usage": {
                    "prompt_tokens": prompt_tokens,
                    "completion_tokens": words,
                    "total_tokens": prompt_tokens + words,
                },
            },
        )

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9100
    server = ThreadingHTTPServer(("127.0.0.1", port), Model)
    print(f"model on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
