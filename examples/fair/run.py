#!/usr/bin/env python3
"""Shows what fair shares change, on a real server: a client in a loop beside one that asks ten times a second, a
thousand clients in a loop beside one with a burst of three, weights of 5 to 1, and lanes of 60% and 40%.

    python3 run.py --tollgate path/to/tollgate --write docs/fairness.md

Prints a table. With --write it also draws plots beside the page, and puts the table between the markers of the page.
Everything runs on loopback, on free ports.
"""

import argparse
import http.client
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- figures of cargo xtask demo fair: begin -->", "<!-- figures of cargo xtask demo fair: end -->"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="fair-")
        self.port = free_port()
        self.log = Path(self.folder, "log")
        args = [program, "serve", "--config", HERE / "fair.yaml", "--http", f"127.0.0.1:{self.port}",
                "--data", Path(self.folder, "data")]
        with open(self.log, "w") as output:
            self.process = subprocess.Popen([str(it) for it in args], stdout=output, stderr=output, cwd=self.folder)
        for _ in range(200):
            if self.process.poll() is not None:
                sys.exit(f"tollgate ended with {self.process.returncode}:\n{self.log.read_text()}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        sys.exit(f"nothing answers on port {self.port}")

    def stop(self):
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)


class Client(threading.Thread):
    """Asks on a connection of its own, and notes the second and the status of each answer."""

    def __init__(self, port, start, instants, requests):
        super().__init__(daemon=True)
        self.port, self.start_at, self.instants, self.requests = port, start, instants, requests
        self.answers = []

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        for instant, (name, attributes) in zip(self.instants, self.requests):
            now = time.monotonic() - self.start_at
            if instant > now:
                if instant > now + 5:
                    # The server closes idle connections. The next request opens another one.
                    connection.close()
                time.sleep(instant - now)
            body = json.dumps({"attributes": attributes})
            connection.request("POST", "/v1/check", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status not in (200, 429):
                raise SystemExit(f"status {answer.status}")
            self.answers.append((time.monotonic() - self.start_at, name, answer.status == 200))
        connection.close()


def loop(start, end):
    """Instants that are always due: a client that asks again at once, from `start` to `end`."""
    begun = time.monotonic()
    while time.monotonic() - begun < end:
        yield start


def every(gap, end, first=0.0):
    instant = first
    while instant < end:
        yield instant
        instant += gap


def forever(name, attributes):
    while True:
        yield name, attributes


def run(port, clients):
    """Runs clients at the same time. Each is (instants, requests). Returns all answers."""
    start = time.monotonic()
    threads = [Client(port, start, instants, requests) for instants, requests in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answer for thread in threads for answer in thread.answers]


def per_second(answers, name, admitted, seconds):
    counts = [0] * seconds
    for at, other, ok in answers:
        if other == name and ok == admitted and at < seconds:
            counts[int(at)] += 1
    return counts


class Row:
    """What a client got in the last `seconds` of a run."""

    def __init__(self, answers, name, first, last):
        own = [ok for at, other, ok in answers if other == name and first <= at < last]
        self.admitted, self.denied = sum(own), len(own) - sum(own)
        self.rate = self.admitted / (last - first)

    def cells(self):
        return f"{self.admitted + self.denied:,} | {self.admitted:,} | {self.denied:,} | {self.rate:.1f}"


def plot(path, title, seconds, lines, marks=()):
    """Draws lines of one value a second. `lines` are (name, colour, values), `marks` are (second, text)."""
    width, height, left, bottom, top = 640, 240, 44, 26, 44
    most = max([1] + [value for _, _, values in lines for value in values]) * 1.05
    x = lambda second: left + second * (width - left - 12) / max(seconds - 1, 1)
    y = lambda value: height - bottom - value * (height - bottom - top) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        "<style>text{fill:#1f2328}.paper{fill:#fff}.grid{stroke:#d8dee4}.a{stroke:#b3261e}.b{stroke:#1f5fa8}.c{stroke:#1b6e3c}"
        ".ta{fill:#b3261e}.tb{fill:#1f5fa8}.tc{fill:#1b6e3c}path,polyline{fill:none}polyline{stroke-width:2}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.grid{stroke:#30363d}.a{stroke:#ff8a80}"
        ".b{stroke:#79b8ff}.c{stroke:#7ee2a8}.ta{fill:#ff8a80}.tb{fill:#79b8ff}.tc{fill:#7ee2a8}}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/><text x="{left}" y="16" font-size="13">{title}</text>',
    ]
    for step in range(5):
        value = most * step / 4
        parts.append(f'<path class="grid" d="M{left} {y(value):.0f}H{width - 12}"/>'
                     f'<text x="{left - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:.0f}</text>')
    for second in range(0, seconds, 5):
        parts.append(f'<text x="{x(second):.0f}" y="{height - 8}" text-anchor="middle">{second} s</text>')
    for second, text in marks:
        parts.append(f'<path class="grid" stroke-dasharray="4 3" d="M{x(second):.0f} {top}V{height - bottom}"/>'
                     f'<text x="{x(second) + 4:.0f}" y="{top + 10}">{text}</text>')
    for index, (name, colour, values) in enumerate(lines):
        drawn = " ".join(f"{x(second):.0f},{y(value):.0f}" for second, value in enumerate(values))
        parts.append(f'<polyline class="{colour}" points="{drawn}"/>'
                     f'<text class="t{colour}" x="{left + 8 + index * 190}" y="34">{name}</text>')
    path.write_text("\n".join(parts + ["</svg>"]) + "\n")


def starvation(port, seconds, action):
    """A client in a loop, on four connections, and one that asks ten times a second."""
    loud = {"action": action, "tenant": "loud"}
    quiet = {"action": action, "tenant": "quiet"}
    clients = [(loop(0, seconds), forever("A", loud)) for _ in range(4)]
    clients.append((every(0.1, seconds, 0.05), forever("B", quiet)))
    return run(port, clients)


def thousand(port, seconds, action):
    """A thousand clients in a loop, on four connections; one that was there before them, with three requests at once
    twice a minute; and one that comes later, with three at once."""
    def crowd(first):
        number = first
        while True:
            yield "crowd", {"action": action, "tenant": f"loud-{number % 1000}"}
            number += 4

    def at_once(name, instants):
        instants = [instant for instant in instants if instant < seconds for _ in range(3)]
        return iter(instants), forever(name, {"action": action, "tenant": name})

    clients = [(loop(0.5, seconds), crowd(first)) for first in range(4)]
    clients += [at_once("quiet", (0.0, 30.5)), at_once("new", (20.0,))]
    return run(port, clients)


def weights(port, seconds):
    def client(tenant):
        return (loop(0, seconds), forever(tenant, {"action": "weights", "tenant": tenant}))
    return run(port, [client("big"), client("big"), client("small"), client("small")])


def lanes(port, seconds):
    """Low priority asks all the time, high priority in the middle third."""
    def requests(priority):
        return forever(priority, {"action": "lanes", "tenant": priority, "priority": priority})

    third = seconds / 3
    high = [(loop(third, 2 * third), requests("high")) for _ in range(2)]
    return run(port, [(loop(0, seconds), requests("low")) for _ in range(2)] + high)


def main():
    parser = argparse.ArgumentParser(description="Shows what fair shares change")
    parser.add_argument("--tollgate", required=True, type=Path, help="the program `tollgate`")
    parser.add_argument("--seconds", type=int, default=12, help="how long an experiment lasts (default 12)")
    parser.add_argument("--write", type=Path, help="the page whose figures and plots are written")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seconds = arguments.seconds
    long = seconds * 3
    server = Server(arguments.tollgate.resolve())
    try:
        port = server.port
        runs = {action: starvation(port, seconds, action) for action in ("without", "with")}
        crowds = {action: thousand(port, long, action) for action in ("without", "with")}
        weighted, laned = weights(port, seconds), lanes(port, long)
    finally:
        server.stop()
    # The first seconds use up the full bucket of the start.
    warm = min(2, seconds // 4)
    table = ["| experiment | client | requests | admitted | denied | admitted a second |", "|---|---|---|---|---|---|"]
    for action, answers in runs.items():
        for name, what in (("A", "A, in a loop"), ("B", "B, ten times a second")):
            table.append(f"| {action} `fair` | {what} | {Row(answers, name, warm, seconds).cells()} |")
    for action, answers in crowds.items():
        for name, what, first in (("crowd", "1,000 clients in a loop", warm), ("quiet", "one with 3 at once every 30 s", 0),
                                  ("new", "a new one with 3 at once after 20 s", 0)):
            table.append(f"| {action} `fair` | {what} | {Row(answers, name, first, long).cells()} |")
    for name, what in (("big", "weight 5, in a loop"), ("small", "weight 1, in a loop")):
        table.append(f"| weights 5 to 1 | {what} | {Row(weighted, name, warm, seconds).cells()} |")
    third = long // 3
    for name, first, last, what in (("low", warm, third, "low alone"), ("low", third + warm, 2 * third, "low beside high"),
                                    ("high", third + warm, 2 * third, "high beside low")):
        table.append(f"| lanes 60% and 40% | {what} | {Row(laned, name, first, last).cells()} |")
    print("\n".join(table))
    if not arguments.write:
        return
    beside = arguments.write.with_name
    joined = {name: [value for action in ("without", "with") for value in per_second(runs[action], name, admitted, seconds)]
              for name, admitted in (("A", True), ("B", True))}
    denied = [value for action in ("without", "with") for value in per_second(runs[action], "B", False, seconds)]
    plot(beside("fairness-starvation.svg"), "100 a second: A asks in a loop, B ten times a second", 2 * seconds,
         [("A admitted", "b", joined["A"]), ("B admitted", "c", joined["B"]), ("B denied", "a", denied)],
         [(0, "without fair"), (seconds, "with fair")])
    plot(beside("fairness-weights.svg"), "Weights 5 to 1, admitted a second", seconds,
         [("weight 5", "b", per_second(weighted, "big", True, seconds)),
          ("weight 1", "c", per_second(weighted, "small", True, seconds))])
    plot(beside("fairness-lanes.svg"), "Lanes of 60% and 40%, admitted a second", long,
         [("high", "b", per_second(laned, "high", True, long)), ("low", "c", per_second(laned, "low", True, long))],
         [(third, "high asks"), (2 * third, "high is idle")])
    page = arguments.write.read_text()
    if BEGIN not in page or END not in page:
        sys.exit(f"{arguments.write} lacks the line {BEGIN}")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    machine = (f"Measured on {platform.system()} {platform.machine()} with {os.cpu_count()} cores, shared with the clients, "
               f"by `cargo xtask demo fair`. The first {warm} seconds of each run are left out: they use up the full bucket.")
    arguments.write.write_text("\n".join([before.rstrip("\n") + "\n", BEGIN, "", machine, "", *table, "", END]) + after)


if __name__ == "__main__":
    main()
