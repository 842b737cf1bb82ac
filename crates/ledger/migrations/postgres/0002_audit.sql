-- Notes of administrative changes: added, never changed and never deleted.
CREATE TABLE audit (
    seq             BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              BYTEA   NOT NULL UNIQUE,
    at              BIGINT  NOT NULL,
    namespace       TEXT    NOT NULL,
    who             TEXT    NOT NULL,
    what            TEXT    NOT NULL,
    text            TEXT    NOT NULL
);

CREATE INDEX audit_by_time ON audit (namespace, at);
