// The API of the admin door, with the operator's token.

const KEY = "tollgate-token";

export class ApiError extends Error {
  constructor(status, body) {
    const help = (body.problems ?? []).map((it) => [it.message, it.help].filter(Boolean).join(": "));
    super([body.message ?? `the server answered ${status}`, ...help].join("; "));
    this.status = status;
    this.code = body.code;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

function headers(body) {
  const own = token.get();
  return {
    ...(own ? { Authorization: `Bearer ${own}` } : {}),
    ...(body ? { "Content-Type": "application/json" } : {}),
  };
}

export async function call(path, { method = "GET", body = null, signal = null } = {}) {
  const response = await fetch(path, { method, headers: headers(body), body: body && JSON.stringify(body), signal, credentials: "omit" });
  const text = await response.text();
  let parsed = {};
  try { parsed = text ? JSON.parse(text) : {}; } catch { parsed = { message: text.slice(0, 200) }; }
  if (!response.ok) throw new ApiError(response.status, parsed);
  return parsed;
}

export const post = (path, body) => call(path, { method: "POST", body });
export const remove = (path) => call(path, { method: "DELETE" });

/** Reads server-sent events until the signal or the server ends them. */
export async function* events(path, signal) {
  const response = await fetch(path, { headers: headers(null), signal, credentials: "omit" });
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({})));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}

export const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return new URLSearchParams(given).toString();
};
