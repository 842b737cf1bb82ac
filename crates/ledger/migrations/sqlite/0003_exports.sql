-- Exports read the entries of a span of periods, of one tenant or of all, in order.
CREATE INDEX entries_of_period ON entries (namespace, period_start, seq);
CREATE INDEX entries_of_tenant ON entries (namespace, tenant, period_start, seq);
