//! Compares the counters with the ledger.
//!
//! Requests continue during the comparison. The usage that other processes admit is in the ledger only
//! after their flush interval. So every counter is read once, and a counter that differs from the
//! ledger is read up to two more times, after a wait. All counters share these waits. A counter agrees
//! if the amount in the ledger lies between two readings of the counter.
//!
//! In mode `async`, an instance reports what is in the ledger up to a `flush` later. So such a counter is read a
//! `flush` after its amount in the ledger.

use std::time::Duration;

use tollgate_config::Counter;
use tollgate_core::{Balance, Charge, Key, Limit, Mode, Recorded, Span, Time};
use tollgate_ledger::{BalanceRow, Entry, Kind};
use tollgate_store::{Store, StoreError};

use super::entries::{RecordedCharge, signed};
use super::posting::PostError;
use super::restore::LedgerCount;
use super::{LedgerSync, unavailable};
use crate::accounts::Accounts;
use crate::active_config::ActiveConfig;

/// The time for a report on its way, after a `flush`.
const REPORTING: Duration = Duration::from_millis(500);
/// How many counters are read from the ledger at a time.
const PAGE: usize = 500;

/// The side that is changed when a difference is repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// No repair: differences are only reported.
    #[default]
    Nothing,
    /// The counters are set to the amounts in the ledger.
    Counters,
    /// The ledger is corrected to the amounts in the counters.
    Ledger,
}

/// A counter that differs from the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The tenant.
    pub tenant: String,
    /// The rule or the budget.
    pub rule: String,
    /// The key of the counter, which contains the hashed subject.
    pub key: u128,
    /// When the period began.
    pub period_start: Time,
    /// The usage in the ledger.
    pub ledger: i64,
    /// The usage in the counter.
    pub counter: i64,
    /// The amount in addition to the limit, granted or carried over, in the ledger.
    pub ledger_extra: i64,
    /// The amount in addition to the limit, in the counter.
    pub counter_extra: i64,
    /// Whether the difference was repaired. A counter cannot be repaired to a negative usage.
    pub repaired: bool,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// The number of counters that were compared.
    pub compared: u64,
    /// The number of counters of the ledger that the store does not have. The next request restores
    /// each of them.
    pub dormant: u64,
    /// The number of counters whose rule does not exist any more.
    pub orphaned: u64,
    /// The counters that differ.
    pub drifts: Vec<Drift>,
    /// Whether more counters differ than are listed.
    pub truncated: bool,
}

/// The most differences that are listed.
pub const MOST_DRIFTS: usize = 10_000;

/// A counter of the ledger.
struct Account {
    row: BalanceRow,
    /// The number of periods in the account's sums. There are several if the calendar has changed.
    periods: usize,
}

/// A counter that differed at the first reading.
struct Suspect {
    account: Account,
    /// The first reading.
    before: Balance,
    /// The signs of the differences, first of the usage, then of the amount in addition to the limit: 1
    /// if the counter was above the ledger, -1 if it was below, 0 if they were equal.
    directions: Option<(i64, i64)>,
}

struct Comparison<'a> {
    sync: &'a LedgerSync,
    store: &'a dyn Store,
    active: &'a ActiveConfig,
    now: Time,
    repair: Repair,
    who: &'a str,
    suspects: Vec<Suspect>,
    found: Reconciled,
}

impl<S: Store> Accounts<'_, S> {
    /// Compares the counters of one tenant, or of all tenants, with the ledger. Repairs differences if `repair`
    /// says so.
    ///
    /// # Errors
    /// If the store or the ledger does not answer.
    pub async fn reconcile(
        &self,
        tenant: Option<&str>,
        repair: Repair,
        who: &str,
    ) -> Result<Reconciled, PostError> {
        let sync = self.sync;
        let now = sync.clock.now();
        sync.ledger.flush().await.map_err(unavailable)?;
        let mut comparison = Comparison {
            sync,
            store: self.limiter.store(),
            active: &self.limiter.active(),
            now,
            repair,
            who,
            suspects: Vec::new(),
            found: Reconciled::default(),
        };
        let (mut after, mut last) = (None, None::<Account>);
        loop {
            let page = sync.ledger.balances(&sync.namespace, now, after, PAGE);
            let page = page.await.map_err(unavailable)?;
            let Some(row) = page.last() else { break };
            after = Some(row.cursor());
            for row in page {
                if tenant.is_some_and(|tenant| *row.tenant != *tenant) {
                    continue;
                }
                match &mut last {
                    Some(account) if account.row.key == row.key => account.add(&row),
                    _ => {
                        let next = Account { row, periods: 1 };
                        if let Some(account) = last.replace(next) {
                            comparison.read_first(account).await?;
                        }
                    }
                }
            }
        }
        if let Some(account) = last {
            comparison.read_first(account).await?;
        }
        comparison.read_again().await?;
        Ok(comparison.found)
    }
}

impl Account {
    fn add(&mut self, row: &BalanceRow) {
        let (sum, more) = (&mut self.row.balance, row.balance);
        sum.used = sum.used.saturating_add(more.used);
        sum.granted = sum.granted.saturating_add(more.granted);
        self.row.period = row.period;
        self.periods += 1;
    }

    fn charge<'a>(&'a self, counter: &Counter<'a>) -> Charge<'a> {
        Charge {
            overflow: counter.overflow,
            rule: &self.row.allowance,
            tag: counter.tag,
            store: counter.store,
            recorded: Some(Recorded::default()),
            ..Charge::new(Key::from_bits(self.row.key), counter.limit)
        }
    }

    /// Returns the count of the current period, if the sums are enough. The sums are not enough if an
    /// amount may be carried over from an earlier period.
    fn count(&self, charge: &Charge<'_>, now: Time) -> Option<LedgerCount> {
        let Limit::Quota(quota) = charge.limit else {
            return None;
        };
        let (row, current) = (&self.row, quota.period_at(now));
        let suffices =
            self.periods == 1 && quota.rollover() == 0 && row.period.start == current.start;
        suffices.then(|| LedgerCount {
            ends_at: current.end,
            used: row.balance.used,
            extra: u64::try_from(row.balance.granted).unwrap_or(0),
        })
    }
}

impl<'a> Comparison<'a> {
    fn counter(&self, account: &Account) -> Option<Counter<'a>> {
        let (row, rules) = (&account.row, self.active.rules());
        rules.counter(&row.allowance, &row.tenant, Key::from_bits(row.key))
    }

    /// Reads a counter for the first time.
    async fn read_first(&mut self, account: Account) -> Result<(), PostError> {
        let Some(counter) = self.counter(&account) else {
            self.found.orphaned += 1;
            return Ok(());
        };
        let charge = account.charge(&counter);
        let Some(before) = self.store.balance(&charge).await? else {
            self.found.dormant += 1;
            return Ok(());
        };
        self.found.compared += 1;
        let recorded = match account.count(&charge, self.now) {
            Some(recorded) => recorded,
            None => self.sync.count_of(&charge, self.now).await?,
        };
        let is_same = signed(before.used) == recorded.used && before.extra == recorded.extra;
        // At the end of a period, the store may already be in the next period.
        if before.ends_at == recorded.ends_at && !is_same {
            self.suspects.push(Suspect {
                account,
                before,
                directions: None,
            });
        }
        if self.suspects.len() >= MOST_DRIFTS {
            self.read_again().await?;
        }
        Ok(())
    }

    /// Waits until the usage of other processes is in the ledger, and reads all suspects again. Does
    /// this twice. A reservation that is made and given back in between looks like a difference once,
    /// but a real difference stays.
    async fn read_again(&mut self) -> Result<(), PostError> {
        let mut suspects = std::mem::take(&mut self.suspects);
        for is_last in [false, true] {
            if suspects.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(self.sync.ledger.flush_interval() * 2).await;
            let mut recorded = Vec::with_capacity(suspects.len());
            for suspect in &suspects {
                recorded.push(self.recorded(suspect).await?);
            }
            // Until then, all instances have reported what they had recorded.
            let longest = suspects.iter().filter_map(|it| self.flush_of(it)).max();
            if let Some(flush) = longest {
                tokio::time::sleep(Duration::from(flush) + REPORTING).await;
            }
            let mut still = Vec::new();
            for (mut suspect, recorded) in suspects.into_iter().zip(recorded) {
                let Some(recorded) = recorded else {
                    continue;
                };
                let Some(drift) = self.drift_of(&mut suspect, recorded).await? else {
                    continue;
                };
                if !is_last {
                    still.push(suspect);
                } else if self.found.drifts.len() < MOST_DRIFTS {
                    let drift = self.repaired(&suspect.account, drift).await?;
                    self.found.drifts.push(drift);
                } else {
                    self.found.truncated = true;
                }
            }
            suspects = still;
        }
        Ok(())
    }

    /// Returns the `flush` of a suspect in mode `async`.
    fn flush_of(&self, suspect: &Suspect) -> Option<Span> {
        match self.counter(&suspect.account)?.mode {
            Mode::Async { flush } => Some(flush),
            _ => None,
        }
    }

    /// Returns the amount of a suspect in the ledger, and how much of it is reserved. `None` if its rule does not
    /// exist any more.
    async fn recorded(&self, suspect: &Suspect) -> Result<Option<(LedgerCount, i64)>, PostError> {
        let account = &suspect.account;
        let Some(counter) = self.counter(account) else {
            return Ok(None);
        };
        let charge = account.charge(&counter);
        let recorded = self.sync.count_of(&charge, self.now).await?;
        let reserved = signed(self.sync.reserved_of(&charge, self.now).await?);
        Ok(Some((recorded, reserved)))
    }

    /// Returns the difference of a suspect, if the suspect still differs in the same direction as
    /// before.
    async fn drift_of(
        &self,
        suspect: &mut Suspect,
        (recorded, reserved): (LedgerCount, i64),
    ) -> Result<Option<Drift>, PostError> {
        let account = &suspect.account;
        let Some(counter) = self.counter(account) else {
            return Ok(None);
        };
        let charge = account.charge(&counter);
        let Some(after) = self.store.balance(&charge).await? else {
            return Ok(None);
        };
        if after.ends_at != recorded.ends_at {
            return Ok(None);
        }
        let before = std::mem::replace(&mut suspect.before, after);
        let extra = signed(recorded.extra);
        let counter = nearest(recorded.used, before.used, after.used);
        let counter_extra = nearest(extra, before.extra, after.extra);
        let difference = counter - recorded.used;
        let is_reserved = difference.abs() <= reserved;
        let directions = (difference.signum(), (counter_extra - extra).signum());
        let is_same = (is_reserved || directions.0 == 0) && directions.1 == 0;
        let known = suspect.directions.replace(directions);
        if is_same || known.is_some_and(|it| it != directions) {
            return Ok(None);
        }
        let row = &account.row;
        Ok(Some(Drift {
            tenant: row.tenant.to_string(),
            rule: row.allowance.to_string(),
            key: row.key,
            period_start: row.period.start,
            ledger: recorded.used,
            counter,
            ledger_extra: extra,
            counter_extra,
            repaired: false,
        }))
    }

    async fn repaired(&self, account: &Account, drift: Drift) -> Result<Drift, PostError> {
        let Some(counter) = self.counter(account) else {
            return Ok(drift);
        };
        let charge = account.charge(&counter);
        let repaired = match self.repair {
            Repair::Nothing => false,
            Repair::Counters => {
                let used = drift.ledger.max(0) - drift.counter;
                let extra = drift.ledger_extra - drift.counter_extra;
                self.store.adjust(&charge, used, extra).await?;
                drift.ledger >= 0
            }
            Repair::Ledger => {
                self.repair_ledger(&charge, account, &drift).await?;
                true
            }
        };
        Ok(Drift { repaired, ..drift })
    }

    async fn repair_ledger(
        &self,
        charge: &Charge<'_>,
        account: &Account,
        drift: &Drift,
    ) -> Result<(), StoreError> {
        let line = RecordedCharge {
            charge,
            labels: Recorded {
                rule: &account.row.rule,
                tenant: &drift.tenant,
                action: "",
                strict: true,
            },
            place: 0,
        };
        let amounts = [
            (Kind::Correction, drift.counter - drift.ledger),
            (Kind::Grant, drift.counter_extra - drift.ledger_extra),
        ];
        let entries = amounts.into_iter().filter(|(_, amount)| *amount != 0);
        let entries = entries.map(|(kind, amount)| Entry {
            kind,
            amount,
            count: 0,
            who: self.who.into(),
            why: "reconciled with the counter".into(),
            ..self.sync.entry(&line, self.now)
        });
        let written = self.sync.ledger.write(entries.collect()).await;
        written.map_err(unavailable)
    }
}

/// Returns the value that is nearest to the ledger, between two readings of a counter.
fn nearest(recorded: i64, before: u64, after: u64) -> i64 {
    let (before, after) = (signed(before), signed(after));
    recorded.clamp(before.min(after), before.max(after))
}
