-- Notes of administrative changes: added, never changed and never deleted.
CREATE TABLE audit (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              BLOB    NOT NULL UNIQUE,
    at              INTEGER NOT NULL,
    namespace       TEXT    NOT NULL,
    who             TEXT    NOT NULL,
    what            TEXT    NOT NULL,
    text            TEXT    NOT NULL
) STRICT;

CREATE INDEX audit_by_time ON audit (namespace, at);
