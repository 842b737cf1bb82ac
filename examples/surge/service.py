#!/usr/bin/env python3
"""A small ride-hailing service, to be protected. Needs only Python.

    python3 service.py --port 9000

Six endpoints. A ride is matched with a driver by a service with a bounded pool: two matches at a time, 100 ms each,
so 20 rides a second. Beyond its capacity it collapses: each ride that waits makes every match slower, because the
candidates are compared with everyone who waits. The web server has a bounded number of places, so rides that wait take
the places of all other requests. GET /seen tells how far the matching service went beyond its capacity. It needs no
place, so it answers also while the service does not.
"""

import argparse
import asyncio
import json
import time

POOL = 2
MATCH = 0.1
# Each ride that waits adds this share of a match.
CONTENTION = 0.02
PLACES = 200

WORK = {  # Seconds that an endpoint takes by itself.
    ("POST", "/rides"): 0.005,
    ("GET", "/fares"): 0.005,
    ("GET", "/nearby"): 0.01,
    ("PUT", "/drivers/location"): 0.002,
    ("GET", "/history"): 0.02,
    ("GET", "/admin/statistics"): 0.05,
}


class Service:
    def __init__(self):
        self.pool = asyncio.Semaphore(POOL)
        self.places = asyncio.Semaphore(PLACES)
        self.waiting = 0
        self.seen = {"matched": 0, "most_waiting": 0, "slowest_match": 0.0}

    async def match(self):
        started = time.monotonic()
        self.waiting += 1
        self.seen["most_waiting"] = max(self.seen["most_waiting"], self.waiting)
        try:
            async with self.pool:
                await asyncio.sleep(MATCH * (1 + CONTENTION * self.waiting))
        finally:
            self.waiting -= 1
        self.seen["matched"] += 1
        self.seen["slowest_match"] = max(self.seen["slowest_match"], time.monotonic() - started)

    async def answer(self, method, path):
        if path == "/seen":
            return 200, self.seen
        work = WORK.get((method, path.split("?")[0]))
        if work is None:
            return 404, {"error": "no such path"}
        async with self.places:
            await asyncio.sleep(work)
            if path.startswith("/rides"):
                await self.match()
                return 201, {"ride": self.seen["matched"]}
            return 200, {"ok": True}

    async def serve(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *fields = head.decode("latin-1").split("\r\n")
                method, path, _ = line.split(" ", 2)
                headers = {name.strip().lower(): value.strip()
                           for name, _, value in (field.partition(":") for field in fields)}
                await reader.readexactly(int(headers.get("content-length", 0)))
                status, body = await self.answer(method, path)
                body = json.dumps(body).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                             % (status, len(body), body))
                await writer.drain()
                if headers.get("connection", "").lower() == "close":
                    break
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()


async def main():
    arguments = argparse.ArgumentParser(description="The service of the surge")
    arguments.add_argument("--port", type=int, default=9000)
    port = arguments.parse_args().port
    server = await asyncio.start_server(Service().serve, "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
