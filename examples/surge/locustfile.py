"""The load of the surge, for Locust (pip install locust).

    locust -f locustfile.py --headless --host http://127.0.0.1:8000 --users 280 --spawn-rate 280 --run-time 30s

Each user sends about one request a second, so 28 users are an ordinary evening, and 280 are the surge. A denial (429) is
not a failure: it is listed under its own name.
"""

from locust import FastHttpUser, constant_throughput, task


class Rider(FastHttpUser):
    wait_time = constant_throughput(1)
    network_timeout = connection_timeout = 20

    def visit(self, method, path):
        with self.client.request(method, path, catch_response=True) as answer:
            if answer.status_code == 429:
                answer.request_meta["name"] = f"{path} denied"
                answer.success()

    @task(4)
    def ride(self):
        self.visit("POST", "/rides")

    @task(5)
    def fare(self):
        self.visit("GET", "/fares?from=a&to=b")

    @task(6)
    def nearby(self):
        self.visit("GET", "/nearby?at=a")

    @task(10)
    def location(self):
        self.visit("PUT", "/drivers/location")

    @task(2)
    def history(self):
        self.visit("GET", "/history")

    @task(1)
    def statistics(self):
        self.visit("GET", "/admin/statistics")
