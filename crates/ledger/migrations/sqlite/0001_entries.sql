-- Times are microseconds since 1970, UTC. Keys and ids are 16 bytes: hex(key) shows them.

-- Entries are added, never changed and never deleted.
CREATE TABLE entries (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              BLOB    NOT NULL UNIQUE,
    at              INTEGER NOT NULL,
    namespace       TEXT    NOT NULL,
    tenant          TEXT    NOT NULL,
    action          TEXT    NOT NULL,
    rule            TEXT    NOT NULL,
    allowance       TEXT    NOT NULL,
    key             BLOB    NOT NULL,
    period_start    INTEGER NOT NULL,
    period_end      INTEGER NOT NULL,
    -- Not IN, for which SQLite would build a table and search it at every insert. The most frequent first.
    kind            TEXT    NOT NULL CHECK (
        kind = 'use' OR kind = 'reserve' OR kind = 'settle'
        OR kind = 'correction' OR kind = 'grant' OR kind = 'expiry'
    ),
    amount          INTEGER NOT NULL,
    count           INTEGER NOT NULL,
    hold            BLOB,
    hold_tag        INTEGER,
    hold_expires_at INTEGER,
    hold_record     TEXT,
    who             TEXT    NOT NULL,
    why             TEXT    NOT NULL,
    idempotency_key TEXT
) STRICT;

-- Sums of the entries, written in the same transaction, so that reading a sum does not add up entries.
CREATE TABLE balances (
    key             BLOB    NOT NULL,
    period_start    INTEGER NOT NULL,
    tenant          TEXT    NOT NULL,
    action          TEXT    NOT NULL,
    rule            TEXT    NOT NULL,
    namespace       TEXT    NOT NULL,
    allowance       TEXT    NOT NULL,
    period_end      INTEGER NOT NULL,
    used            INTEGER NOT NULL,
    granted         INTEGER NOT NULL,
    corrections     INTEGER NOT NULL,
    requests        INTEGER NOT NULL,
    entries         INTEGER NOT NULL,
    -- The time of the latest entry.
    last_at         INTEGER NOT NULL,
    PRIMARY KEY (key, period_start, tenant, action, rule)
) STRICT, WITHOUT ROWID;

CREATE INDEX balances_of_tenant ON balances (namespace, tenant, period_start);

-- Reservations, one row for each counter, computed from the entries about them.
CREATE TABLE holds (
    hold            BLOB    NOT NULL,
    key             BLOB    NOT NULL,
    namespace       TEXT    NOT NULL,
    tenant          TEXT    NOT NULL,
    action          TEXT    NOT NULL,
    rule            TEXT    NOT NULL,
    allowance       TEXT    NOT NULL,
    period_start    INTEGER NOT NULL,
    period_end      INTEGER NOT NULL,
    tag             INTEGER NOT NULL,
    reserved        INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    record          TEXT    NOT NULL,
    ended_kind      TEXT,
    ended_amount    INTEGER NOT NULL,
    PRIMARY KEY (hold, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX holds_of_counter ON holds (key, expires_at);
CREATE INDEX holds_open_of_counter ON holds (key, period_start) WHERE ended_kind IS NULL;
CREATE INDEX holds_overdue ON holds (namespace, expires_at) WHERE ended_kind IS NULL;

-- For people and reports.
CREATE VIEW usage_by_period AS
SELECT
    namespace, tenant, action, rule, allowance,
    datetime(period_start / 1000000, 'unixepoch') AS period_start,
    datetime(period_end / 1000000, 'unixepoch') AS period_end,
    used, granted, corrections, requests, entries,
    lower(hex(key)) AS key
FROM balances;
