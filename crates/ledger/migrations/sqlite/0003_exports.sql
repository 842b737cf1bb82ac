-- Between which numbers the entries of a period are: exports read those, in order. An index of the entries would
-- say the same row by row, at the price of every insert.
CREATE TABLE periods (
    namespace       TEXT    NOT NULL,
    period_start    INTEGER NOT NULL,
    -- All have numbers above this,
    from_seq        INTEGER NOT NULL,
    -- and none above this.
    to_seq          INTEGER NOT NULL,
    PRIMARY KEY (namespace, period_start)
) STRICT, WITHOUT ROWID;

INSERT INTO periods (namespace, period_start, from_seq, to_seq)
SELECT namespace, period_start, min(seq) - 1, max(seq) FROM entries GROUP BY namespace, period_start;
