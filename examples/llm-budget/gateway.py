#!/usr/bin/env python3
"""A gateway in front of a language model that never spends more tokens than a tenant has.

    gateway.py [PORT] [--tollgate URL] [--model URL] [--timeout SECONDS]

For every call it reserves the most that the call can take (the prompt and max_tokens). Then it asks the
model, and settles what the model reports. Unused tokens go back at once. If the model certainly did no
work, everything goes back. If that is unknown, the whole reservation is charged. If the gateway dies,
everything goes back when the reservation expires.
"""

import argparse
import http.client
import json
import urllib.error
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Longer than a call and its settlement may take. An open reservation is given back after that.
TTL = "90s"


def post(url, body, timeout=10):
    """Returns status, headers and JSON of any answer. Raises OSError if there is none."""
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
        raise OSError(f"malformed answer: {error!r}") from error


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
                # A repeated call with the same key does not reserve twice.
                "idempotencyKey": key,
            },
        )

    def settle(self, reservation, tokens):
        verb, body = ("commit", {"actual": tokens}) if tokens else ("release", {})
        # Safe to repeat: a reservation is settled once, even if an answer is lost. If it cannot be
        # settled at all, it expires by itself. The client gets the model's answer in any case.
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
            # This key has a reservation already: the call is running, or has finished. One reservation
            # pays for one call.
            return self.answer(409, {"error": "this call is made already: a new one needs a new key"})
        if status != 201:
            # Pass on Tollgate's answer: it names the limit, and says when to retry.
            passed = {name: headers[name] for name in ("Retry-After",) if headers[name]}
            return self.answer(status, told, passed)

        status, answer, used = self.ask(body, most)
        self.budget.settle(told["id"], used)
        spent = {"X-Tokens-Reserved": str(most), "X-Tokens-Used": str(used)}
        self.answer(status, answer, spent)

    def ask(self, body, most):
        """Returns status and body of the model's answer, and how many tokens it took."""
        url = f"{self.model}/v1/chat/completions"
        try:
            status, _, answer = post(url, body, self.timeout_of_model)
        except OSError as error:
            # If the model refused the connection, it did no work. In any other case it may have worked on
            # an answer that was lost, so the whole reservation is charged.
            refused = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
            failed = {"error": f"the model did not answer: {error!r}"}
            return 502, failed, 0 if refused else most
        if status >= 400:
            # The model itself reports that it failed, so nothing is charged.
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
