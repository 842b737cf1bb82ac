#!/usr/bin/env python3
"""A gateway in front of a language model that never spends more tokens than a tenant has.

    gateway.py [PORT] [--tollgate URL] [--model URL]

For every call it reserves the most the call can take (the prompt and max_tokens), asks the model, and
settles what the model says it took. What was reserved too much is back at once; a call that fails gives
everything back; a gateway that dies gives it back when the reservation's time is over.
"""

import argparse
import json
import urllib.error
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Longer than any call may take: what nobody settles is back after that.
TTL = "60s"


def post(url, body, timeout=10):
    """The status, headers and JSON of an answer, whether it is an error or not."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.headers, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, json.load(error)


class Budget:
    """Reserves and settles tokens."""

    def __init__(self, tollgate):
        self.tollgate = tollgate

    def reserve(self, tenant, tokens, key):
        return post(
            f"{self.tollgate}/v1/reservations",
            {
                "attributes": {"tenant": tenant, "action": "chat"},
                "cost": tokens,
                "ttl": TTL,
                # Whoever repeats a call under its key does not reserve twice.
                "idempotencyKey": key,
            },
        )

    def commit(self, reservation, tokens):
        # Safe to repeat: a reservation is settled once, whatever gets lost on the way.
        for _ in range(3):
            try:
                status, _, _ = post(
                    f"{self.tollgate}/v1/reservations/{reservation}/commit", {"actual": tokens}
                )
                if status < 500:
                    return
            except OSError:
                pass

    def release(self, reservation):
        return post(f"{self.tollgate}/v1/reservations/{reservation}/release", {})


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    budget = None
    model = None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tenant = self.headers["X-Tenant"]
        key = self.headers.get("Idempotency-Key") or uuid.uuid4().hex
        prompt = body["messages"][-1]["content"]
        most = len(prompt.split()) + body.get("max_tokens", 1000)

        status, headers, told = self.budget.reserve(tenant, most, key)
        if status == 200 and told["state"] != "RESERVED":
            # Asked, answered and paid for: under this key there is nothing more to spend.
            return self.answer(409, {"error": "this call was made already"})
        if status not in (200, 201):
            # Which limit it was, and when to come back: as Tollgate says it.
            passed = {name: headers[name] for name in ("Retry-After",) if headers[name]}
            return self.answer(status, told, passed)

        try:
            status, _, answer = post(f"{self.model}/v1/chat/completions", body, timeout=50)
            used = answer["usage"]["total_tokens"]
        except (OSError, KeyError) as error:
            self.budget.release(told["id"])
            return self.answer(502, {"error": f"the model did not answer: {error!r}"})

        # If that fails for good, the reservation ends by itself: the answer is there all the same.
        self.budget.commit(told["id"], used)
        spent = {"X-Tokens-Reserved": str(most), "X-Tokens-Used": str(used)}
        self.answer(status, answer, spent)

    def answer(self, status, body, headers=()):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", nargs="?", type=int, default=9000)
    parser.add_argument("--tollgate", default="http://127.0.0.1:8080")
    parser.add_argument("--model", default="http://127.0.0.1:9100")
    options = parser.parse_args()
    Gateway.budget = Budget(options.tollgate)
    Gateway.model = options.model
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Gateway)
    print(f"gateway on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
