#!/usr/bin/env python3
"""A gateway in front of a language model that never spends more tokens than a tenant has.

    gateway.py [PORT] [--tollgate URL] [--model URL] [--timeout SECONDS]

For every call it reserves the most the call can take (the prompt and max_tokens), asks the model, and
settles what the model says it took. What was reserved too much is back at once. A call that the model
surely did not work on gives everything back; one of which nobody knows is paid for in full. A gateway that
dies gives everything back when the reservation's time is over.
"""

import argparse
import http.client
import json
import urllib.error
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Longer than a call and its settling may take: what nobody settles is back after that.
TTL = "90s"


def post(url, body, timeout=10):
    """The status, headers and JSON of an answer, whether it is an error or not. Without one, OSError."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        try:
            answer = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.headers, json.load(answer)
    except (ValueError, http.client.HTTPException) as error:
        raise OSError(f"this is no answer: {error!r}") from error


class Budget:
    """Reserves and settles tokens."""

    def __init__(self, tollgate):
        self.reservations = f"{tollgate}/v1/reservations"

    def reserve(self, tenant, tokens, key):
        return post(
            self.reservations,
            {
                "attributes": {"tenant": tenant, "action": "chat"},
                "cost": tokens,
                "ttl": TTL,
                # Whoever repeats a call under its key does not reserve twice.
                "idempotencyKey": key,
            },
        )

    def settle(self, reservation, tokens):
        verb, body = ("commit", {"actual": tokens}) if tokens else ("release", {})
        # Safe to repeat: a reservation is settled once, whatever gets lost on the way. If it cannot be
        # settled at all, it ends by itself: the answer is there all the same.
        for _ in range(3):
            try:
                status, _, _ = post(f"{self.reservations}/{reservation}/{verb}", body)
                if status < 500:
                    return
            except OSError:
                pass


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    budget = None
    model = None
    timeout_of_model = None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tenant = self.headers["X-Tenant"]
        key = self.headers.get("Idempotency-Key") or uuid.uuid4().hex
        prompt = body["messages"][-1]["content"]
        most = len(prompt.split()) + body.get("max_tokens", 1000)

        try:
            status, headers, told = self.budget.reserve(tenant, most, key)
        except OSError as error:
            return self.answer(503, {"error": f"the budget cannot be asked: {error!r}"})
        if status == 200:
            # There is a reservation under this key: the call is being made, or was made. One reservation
            # pays for one call.
            return self.answer(409, {"error": "this call is made already: a new one needs a new key"})
        if status != 201:
            # Which limit it was, and when to come back: as Tollgate says it.
            passed = {name: headers[name] for name in ("Retry-After",) if headers[name]}
            return self.answer(status, told, passed)

        status, answer, used = self.ask(body, most)
        self.budget.settle(told["id"], used)
        spent = {"X-Tokens-Reserved": str(most), "X-Tokens-Used": str(used)}
        self.answer(status, answer, spent)

    def ask(self, body, most):
        """What the model answers, and how many tokens that took."""
        url = f"{self.model}/v1/chat/completions"
        try:
            status, _, answer = post(url, body, self.timeout_of_model)
        except OSError as error:
            # Who refuses the connection was not asked. Anybody else may have worked on an answer that got
            # lost, and that costs what it may have cost.
            refused = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
            failed = {"error": f"the model did not answer: {error!r}"}
            return 502, failed, 0 if refused else most
        if status >= 400:
            # It says itself that it has done nothing.
            return 502, {"error": "the model failed", "answer": answer}, 0
        return status, answer, answer.get("usage", {}).get("total_tokens", most)

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
    parser.add_argument("--timeout", type=float, default=50)
    options = parser.parse_args()
    Gateway.budget = Budget(options.tollgate)
    Gateway.model = options.model
    Gateway.timeout_of_model = options.timeout
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Gateway)
    print(f"gateway on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
