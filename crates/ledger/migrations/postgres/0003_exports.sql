-- Between which sequence numbers the entries of a period are: exports read that range in order. An index on the
-- entries would do the same, but would slow down every insert.
CREATE TABLE periods (
    namespace       TEXT    NOT NULL,
    period_start    BIGINT  NOT NULL,
    -- All sequence numbers of the period are above this number,
    from_seq        BIGINT  NOT NULL,
    -- and at most this number.
    to_seq          BIGINT  NOT NULL,
    PRIMARY KEY (namespace, period_start)
);

INSERT INTO periods (namespace, period_start, from_seq, to_seq)
SELECT namespace, period_start, min(seq) - 1, max(seq) FROM entries GROUP BY namespace, period_start;
