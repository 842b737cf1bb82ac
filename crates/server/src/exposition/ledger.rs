//! The status of the ledger, as metrics.

use tollgate::{Engine, Time};

use super::Page;

impl Page {
    /// How far the ledger is behind. Nothing without a ledger.
    pub(super) fn ledger(&mut self, engine: &Engine, now: Time) {
        let Some(accounts) = engine.accounts() else {
            return;
        };
        let status = accounts.ledger().status();
        let lag = status.lag(now).map_or(0, tollgate::Span::as_micros);
        let name = "tollgate_ledger_connected";
        let help = "1 if the last attempt to reach the ledger's database succeeded, 0 if not.";
        self.family(name, "gauge", help);
        self.sample(name, &[], u8::from(status.is_connected));
        let name = "tollgate_ledger_lag_seconds";
        let help = "The age of the oldest entry that is not in the database; 0 if all are.";
        self.family(name, "gauge", help);
        // Milliseconds are precise enough.
        let (seconds, millis) = (lag / 1_000_000, lag / 1000 % 1000);
        self.sample(name, &[], format_args!("{seconds}.{millis:03}"));
        for (name, kind, help, value) in [
            (
                "tollgate_ledger_queued_entries",
                "gauge",
                "Entries that wait in memory to be written to the ledger.",
                status.queued as u64,
            ),
            (
                "tollgate_ledger_spilled_entries",
                "gauge",
                "Entries that wait in spill files because the database did not accept them.",
                status.spilled,
            ),
            (
                "tollgate_ledger_written_total",
                "counter",
                "Entries written to the database of the ledger.",
                status.written,
            ),
            (
                "tollgate_ledger_failures_total",
                "counter",
                "Transactions of the ledger that failed and were retried.",
                status.failures,
            ),
        ] {
            self.family(name, kind, help);
            self.sample(name, &[], value);
        }
    }
}
