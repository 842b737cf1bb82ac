-- Times are microseconds since 1970, UTC; the view usage_by_period has them as timestamps. Keys and ids are
-- 16 bytes.

-- Entries are added, never changed and never deleted.
CREATE TABLE entries (
    seq             BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              BYTEA   NOT NULL UNIQUE,
    at              BIGINT  NOT NULL,
    namespace       TEXT    NOT NULL,
    tenant          TEXT    NOT NULL,
    action          TEXT    NOT NULL,
    rule            TEXT    NOT NULL,
    allowance       TEXT    NOT NULL,
    key             BYTEA   NOT NULL,
    period_start    BIGINT  NOT NULL,
    period_end      BIGINT  NOT NULL,
    kind            TEXT    NOT NULL CHECK (kind IN ('use', 'reserve', 'settle', 'correction', 'grant', 'expiry')),
    amount          BIGINT  NOT NULL,
    count           BIGINT  NOT NULL,
    hold            BYTEA,
    hold_tag        BIGINT,
    hold_expires_at BIGINT,
    hold_record     TEXT,
    who             TEXT    NOT NULL,
    why             TEXT    NOT NULL,
    idempotency_key TEXT
);

-- Sums of the entries, written in the same transaction, so that reading a sum does not add up entries.
CREATE TABLE balances (
    key             BYTEA   NOT NULL,
    period_start    BIGINT  NOT NULL,
    -- Compared byte by byte, as in SQLite, so that both databases list names in the same order.
    tenant          TEXT    COLLATE "C" NOT NULL,
    action          TEXT    COLLATE "C" NOT NULL,
    rule            TEXT    COLLATE "C" NOT NULL,
    namespace       TEXT    COLLATE "C" NOT NULL,
    allowance       TEXT    NOT NULL,
    period_end      BIGINT  NOT NULL,
    used            BIGINT  NOT NULL,
    granted         BIGINT  NOT NULL,
    corrections     BIGINT  NOT NULL,
    requests        BIGINT  NOT NULL,
    entries         BIGINT  NOT NULL,
    -- The time of the latest entry.
    last_at         BIGINT  NOT NULL,
    PRIMARY KEY (key, period_start, tenant, action, rule)
);

-- Rows of the current period change all the time: leave room for that on their pages.
ALTER TABLE balances SET (fillfactor = 70);

CREATE INDEX balances_of_tenant ON balances (namespace, tenant, period_start);

-- Reservations, one row for each counter, computed from the entries about them.
CREATE TABLE holds (
    hold            BYTEA   NOT NULL,
    key             BYTEA   NOT NULL,
    namespace       TEXT    NOT NULL,
    tenant          TEXT    NOT NULL,
    action          TEXT    NOT NULL,
    rule            TEXT    NOT NULL,
    allowance       TEXT    NOT NULL,
    period_start    BIGINT  NOT NULL,
    period_end      BIGINT  NOT NULL,
    tag             BIGINT  NOT NULL,
    reserved        BIGINT  NOT NULL,
    expires_at      BIGINT  NOT NULL,
    record          TEXT    NOT NULL,
    ended_kind      TEXT,
    ended_amount    BIGINT  NOT NULL,
    PRIMARY KEY (hold, key)
);

CREATE INDEX holds_of_counter ON holds (key, expires_at);
CREATE INDEX holds_open_of_counter ON holds (key, period_start) WHERE ended_kind IS NULL;
CREATE INDEX holds_overdue ON holds (namespace, expires_at) WHERE ended_kind IS NULL;

-- For people and reports.
CREATE VIEW usage_by_period AS
SELECT
    namespace, tenant, action, rule, allowance,
    to_timestamp(period_start / 1000000.0) AS period_start,
    to_timestamp(period_end / 1000000.0) AS period_end,
    used, granted, corrections, requests, entries,
    encode(key, 'hex') AS key
FROM balances;
