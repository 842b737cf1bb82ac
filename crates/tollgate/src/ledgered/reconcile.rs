//! Whether the counters agree with the books.
//!
//! Requests go on meanwhile, and what other processes have admitted is in the books after their flush
//! interval. So every counter is read once; those that differ are read again after a wait, which is one
//! for all of them; and what the books say then may lie between the two readings.

use std::sync::Arc;

use tollgate_config::Counter;
use tollgate_core::{Balance, Charge, Key, Limit, Recorded, Time};
use tollgate_ledger::{BalanceRow, Kind};
use tollgate_store::{Store, StoreError};

use super::entries::{Line, signed};
use super::posting::PostError;
use super::restore::Booked;
use super::{LedgerSync, unavailable};
use crate::active_config::ActiveConfig;

/// How many counters are read from the books at a time.
const PAGE: usize = 500;

/// In which direction a difference is repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// Not at all: it is only reported.
    #[default]
    Nothing,
    /// The counters are set to what the ledger says.
    Counters,
    /// The ledger is corrected to what the counters say.
    Ledger,
}

/// A counter that differs from the books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Whose it is.
    pub tenant: String,
    /// The rule or the budget.
    pub rule: String,
    /// The hashed subject's key.
    pub key: u128,
    /// When the period began.
    pub period_start: Time,
    /// What is used, as the books say.
    pub ledger: i64,
    /// What is used, as the counter says.
    pub counter: i64,
    /// What there is beside the limit, granted or carried over, as the books say.
    pub ledger_extra: i64,
    /// The same, as the counter says.
    pub counter_extra: i64,
    /// Whether it was repaired. A counter does not go below nothing, whatever the books say.
    pub repaired: bool,
}

/// What a comparison has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// How many counters were compared.
    pub compared: u64,
    /// How many of the books have no counter at present: it is restored when somebody asks.
    pub dormant: u64,
    /// How many belong to rules that are no more.
    pub orphaned: u64,
    /// Those that differ.
    pub drifts: Vec<Drift>,
    /// Whether there were more than are listed.
    pub truncated: bool,
}

/// How many differences are listed at most.
pub const MOST_DRIFTS: usize = 10_000;

/// A counter of the books.
struct Account {
    row: BalanceRow,
    /// How many periods its sums are of: several if the calendar has changed.
    periods: usize,
}

/// A counter that differs at first sight, with what it said then.
struct Suspect {
    account: Account,
    before: Balance,
    /// Whether what is used, and what there is beside the limit, was more or less than in the books.
    directions: Option<(i64, i64)>,
}

/// One comparison.
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

impl LedgerSync {
    /// Compares the counters with the books, for one tenant or for all.
    pub(crate) async fn reconcile(
        &self,
        store: &dyn Store,
        active: &ActiveConfig,
        tenant: Option<&str>,
        (repair, who): (Repair, &str),
    ) -> Result<Reconciled, PostError> {
        let now = self.clock.now();
        let failed = |error| PostError::Store(unavailable(&error));
        self.ledger.flush().await.map_err(failed)?;
        let mut comparison = Comparison {
            sync: self,
            store,
            active,
            now,
            repair,
            who,
            suspects: Vec::new(),
            found: Reconciled::default(),
        };
        let (mut after, mut last) = (None, None::<Account>);
        loop {
            let page = self
                .ledger
                .balances(&self.namespace, now, after, PAGE)
                .await;
            let page = page.map_err(failed)?;
            let Some(row) = page.last() else {
                break;
            };
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
                            comparison.look(account).await?;
                        }
                    }
                }
            }
        }
        if let Some(account) = last {
            comparison.look(account).await?;
        }
        comparison.look_again().await?;
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
            recorded: Some(Recorded::default()),
            ..Charge::new(Key::from_bits(self.row.key), counter.limit)
        }
    }

    /// What its sums amount to, if they tell: where nothing is carried over from earlier periods.
    fn booked(&self, charge: &Charge<'_>, now: Time) -> Option<Booked> {
        let Limit::Quota(quota) = charge.limit else {
            return None;
        };
        let (row, current) = (&self.row, quota.period_at(now));
        let tells = self.periods == 1 && quota.rollover() == 0 && row.period.start == current.start;
        tells.then(|| Booked {
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

    /// Looks at a counter for the first time.
    async fn look(&mut self, account: Account) -> Result<(), PostError> {
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
        let booked = match account.booked(&charge, self.now) {
            Some(booked) => booked,
            None => self.sync.booked_of(&charge, self.now).await?,
        };
        let is_same = signed(before.used) == booked.used && before.extra == booked.extra;
        // At the turn of a period the store may be in the next one already.
        if before.ends_at == booked.ends_at && !is_same {
            self.suspects.push(Suspect {
                account,
                before,
                directions: None,
            });
        }
        if self.suspects.len() >= MOST_DRIFTS {
            self.look_again().await?;
        }
        Ok(())
    }

    /// Waits until what others have admitted is in the books, and looks at all suspects again. Twice, as
    /// what is reserved and given back meanwhile looks like a difference too: one that is real stays.
    async fn look_again(&mut self) -> Result<(), PostError> {
        let mut suspects = std::mem::take(&mut self.suspects);
        for is_last in [false, true] {
            if suspects.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(self.sync.ledger.flush_interval() * 2).await;
            let mut still = Vec::new();
            for mut suspect in suspects {
                let Some(drift) = self.drift_of(&mut suspect).await? else {
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

    /// By how much a suspect still differs, and in the same direction as before.
    async fn drift_of(&self, suspect: &mut Suspect) -> Result<Option<Drift>, PostError> {
        let account = &suspect.account;
        let Some(counter) = self.counter(account) else {
            return Ok(None);
        };
        let charge = account.charge(&counter);
        let booked = self.sync.booked_of(&charge, self.now).await?;
        let reserved = signed(self.sync.reserved_of(&charge, self.now).await?);
        let Some(after) = self.store.balance(&charge).await? else {
            return Ok(None);
        };
        if after.ends_at != booked.ends_at {
            return Ok(None);
        }
        let before = std::mem::replace(&mut suspect.before, after);
        let extra = signed(booked.extra);
        let counter = nearest(booked.used, before.used, after.used);
        let counter_extra = nearest(extra, before.extra, after.extra);
        let difference = counter - booked.used;
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
            ledger: booked.used,
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
            Repair::Counters => self.repair_counter(&charge, &drift).await?,
            Repair::Ledger => {
                self.repair_ledger(&charge, &account.row.rule, &drift)
                    .await?
            }
        };
        Ok(Drift { repaired, ..drift })
    }

    async fn repair_counter(&self, charge: &Charge<'_>, drift: &Drift) -> Result<bool, StoreError> {
        let used = drift.ledger.max(0) - drift.counter;
        let extra = drift.ledger_extra - drift.counter_extra;
        self.store.adjust(charge, used, extra).await?;
        Ok(drift.ledger >= 0)
    }

    async fn repair_ledger(
        &self,
        charge: &Charge<'_>,
        rule: &Arc<str>,
        drift: &Drift,
    ) -> Result<bool, StoreError> {
        let line = Line {
            charge,
            labels: Recorded {
                rule,
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
        let entries = entries.map(|(kind, amount)| {
            let mut entry = self.sync.entry(&line, self.now);
            entry.kind = kind;
            entry.amount = amount;
            entry.count = 0;
            entry.who = self.who.into();
            entry.why = "reconciled with the counter".into();
            entry
        });
        let written = self.sync.ledger.write(entries.collect()).await;
        written.map_err(|error| unavailable(&error))?;
        Ok(true)
    }
}

/// What two readings of a counter say that is nearest to the books: the same, if the books lie between.
fn nearest(booked: i64, before: u64, after: u64) -> i64 {
    let (before, after) = (signed(before), signed(after));
    booked.clamp(before.min(after), before.max(after))
}
