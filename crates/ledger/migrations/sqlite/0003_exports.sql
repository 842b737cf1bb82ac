-- Exports read the entries of a span of periods, in order.
CREATE INDEX entries_of_period ON entries (namespace, period_start, seq);
