//! What operators do with the books: read them, set them right, and compare them with the counters.

use tollgate_core::{CarryOver, Charge, Enforcement, Key, Limit, OnDenied, Time};
use tollgate_ledger::{BalanceRow, Kind};
use tollgate_rules::{Attributes, Borne, Durability};
use tollgate_store::{Ask, HoldStore, StoreError};

use super::entries::{Line, lines, signed};
use super::{Books, derived_id, unavailable};
use crate::live::Live;
use crate::parties::Party;

/// How many counters are compared at a time.
const PAGE: usize = 500;

/// What somebody writes into the books by hand.
#[derive(Clone, Copy, Debug)]
pub struct Posting<'a> {
    /// The rule, or the budget, whose counter it is.
    pub rule: &'a str,
    /// What kind.
    pub what: Posted,
    /// Who does it, and why.
    pub who: &'a str,
    /// The reason. There has to be one.
    pub why: &'a str,
    /// Who says the same twice under one key is heard once.
    pub idempotency_key: Option<&'a str>,
}

/// What can be written by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// So much more, or less, was used.
    Correction(i64),
    /// There is so much more to use in this period.
    Grant(u64),
}

/// How a counter stands after something was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The rule or the budget.
    pub rule: String,
    /// What is used.
    pub used: u64,
    /// What there is beside the limit.
    pub extra: u64,
    /// The limit.
    pub limit: u64,
    /// When the period ends.
    pub ends_at: Time,
    /// Whether it had been posted before, and nothing was done.
    pub repeated: bool,
}

/// Why something cannot be posted, or compared.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PostError {
    /// No such rule applies, or none that is kept in the books.
    #[error(
        "no ledgered rule `{rule}` applies to these attributes: name what the rule matches and its `per`"
    )]
    NoSuchCounter {
        /// The rule that was named.
        rule: String,
    },
    /// A reason is missing.
    #[error("why? A correction or grant needs a reason")]
    NoReason,
    /// An amount that nobody can use.
    #[error(
        "the amount has to be from 1 to 2^52, or for a correction from -2^52 to 2^52 and not 0"
    )]
    Amount,
    /// There is no ledger.
    #[error("no ledger is configured: add a `ledger` section")]
    NoLedger,
    /// The store or the ledger cannot be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

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
    /// What the books say.
    pub ledger: i64,
    /// What the counter says.
    pub counter: i64,
    /// Whether it was repaired.
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

impl Books {
    /// Writes something into the books by hand, and sets the counter accordingly.
    pub(crate) async fn post<S: HoldStore>(
        &self,
        store: &S,
        live: &Live,
        attributes: &Attributes<'_>,
        posting: &Posting<'_>,
    ) -> Result<Standing, PostError> {
        if posting.why.trim().is_empty() {
            return Err(PostError::NoReason);
        }
        let bound = signed(tollgate_core::MAX_AMOUNT);
        let (kind, amount, used, extra) = match posting.what {
            Posted::Correction(amount) => (Kind::Correction, amount, amount, 0),
            Posted::Grant(amount) => (Kind::Grant, signed(amount), 0, signed(amount)),
        };
        if amount == 0 || !(-bound..=bound).contains(&amount) {
            return Err(PostError::Amount);
        }
        let borne = Borne::default();
        let resolution = live.rules().resolve(attributes, &borne);
        let found = lines(live, &resolution)
            .find(|line| line.rule == posting.rule || line.charge.rule == posting.rule);
        let line = found.ok_or_else(|| PostError::NoSuchCounter {
            rule: posting.rule.to_owned(),
        })?;
        let charge = *line.charge;
        // There is something to set right.
        let peeked = self.peek(store, &[charge], Ask::Exactly(0)).await?;
        // One at a time, so that what is said twice is done once.
        let _alone = self.alone(charge.key).await;
        let mut entry = self.entry(&line, &Party::of(attributes), peeked.now);
        entry.kind = kind;
        entry.amount = amount;
        entry.count = 0;
        entry.who = posting.who.into();
        entry.why = posting.why.into();
        if let Some(key) = posting.idempotency_key {
            entry.idempotency_key = Some(key.into());
            entry.id = derived_id(&[
                b"posting",
                self.namespace.as_bytes(),
                key.as_bytes(),
                &charge.key.bits().to_le_bytes(),
            ]);
            let known = self.ledger.contains(entry.id).await;
            if known.map_err(|error| unavailable(&error))? {
                return self.standing(store, &charge, true).await;
            }
        }
        // Never more is taken back than was used.
        let before = store.balance(&charge).await?.unwrap_or_default();
        let used = used.max(-signed(before.used));
        if kind == Kind::Correction {
            entry.amount = used;
        }
        // The books first: whoever repeats it after a failure finds it there, and what the counter lacks
        // then shows as drift.
        let written = self.ledger.write(vec![entry]).await;
        written.map_err(|error| unavailable(&error))?;
        store.adjust(&charge, used, extra).await?;
        self.standing(store, &charge, false).await
    }

    async fn standing<S: HoldStore>(
        &self,
        store: &S,
        charge: &Charge<'_>,
        repeated: bool,
    ) -> Result<Standing, PostError> {
        let balance = store.balance(charge).await?.unwrap_or_default();
        let limit = match charge.limit {
            Limit::Quota(quota) => quota.limit(),
            other => other.capacity(),
        };
        Ok(Standing {
            rule: charge.rule.to_owned(),
            used: balance.used,
            extra: balance.extra,
            limit,
            ends_at: balance.ends_at,
            repeated,
        })
    }

    /// Compares the counters with the books, for one tenant or for all.
    pub(crate) async fn reconcile<S: HoldStore>(
        &self,
        store: &S,
        live: &Live,
        now: Time,
        tenant: Option<&str>,
        (repair, who): (Repair, &str),
    ) -> Result<Reconciled, PostError> {
        let failed = |error| PostError::Store(unavailable(&error));
        self.ledger.flush().await.map_err(failed)?;
        let mut found = Reconciled::default();
        let mut after = None;
        loop {
            let page = self
                .ledger
                .balances(&self.namespace, now, after, PAGE)
                .await;
            let page = page.map_err(failed)?;
            let Some(last) = page.last() else {
                return Ok(found);
            };
            after = Some(last.cursor());
            for row in &page {
                if tenant.is_some_and(|tenant| *row.tenant != *tenant) {
                    continue;
                }
                let drift = self
                    .compare(store, live, row, now, (repair, who), &mut found)
                    .await?;
                match drift {
                    Some(drift) if found.drifts.len() < MOST_DRIFTS => found.drifts.push(drift),
                    Some(_) => found.truncated = true,
                    None => {}
                }
            }
        }
    }
}

impl Books {
    /// One counter against the books. Requests go on meanwhile: what the books say may lie between two
    /// readings of the counter.
    async fn compare<S: HoldStore>(
        &self,
        store: &S,
        live: &Live,
        row: &BalanceRow,
        now: Time,
        (repair, who): (Repair, &str),
        found: &mut Reconciled,
    ) -> Result<Option<Drift>, PostError> {
        let failed = |error| PostError::Store(unavailable(&error));
        let key = Key::from_bits(row.key);
        let Some(counter) = live.rules().counter(&row.allowance, &row.tenant, key) else {
            found.orphaned += 1;
            return Ok(None);
        };
        let charge = Charge {
            key,
            overflow: counter.overflow,
            rule: &row.allowance,
            tag: counter.tag,
            limit: counter.limit,
            cost: 1,
            enforcement: Enforcement::Enforce,
            on_denied: OnDenied::Nothing,
            carry_over: CarryOver::Keep,
            ledgered: true,
            overdraft: 0,
        };
        let Some(before) = store.balance(&charge).await? else {
            found.dormant += 1;
            return Ok(None);
        };
        found.compared += 1;
        let mut booked = row.balance.used;
        if before.ends_at != row.period.end || signed(before.used) == booked {
            return Ok(None);
        }
        // What others have admitted is in the books after their flush interval.
        tokio::time::sleep(self.ledger.flush_interval() * 2).await;
        // All periods that the present one was made of, if the calendar has changed.
        booked = signed(self.balance_of(&charge, now).await?.used);
        let Some(after) = store.balance(&charge).await? else {
            return Ok(None);
        };
        let (least, most) = (
            signed(before.used.min(after.used)),
            signed(before.used.max(after.used)),
        );
        if (least..=most).contains(&booked) {
            return Ok(None);
        }
        let counter = if booked < least { least } else { most };
        let difference = booked - counter;
        match repair {
            Repair::Nothing => {}
            Repair::Counters => {
                store.adjust(&charge, difference, 0).await?;
            }
            Repair::Ledger => {
                let line = Line {
                    charge: &charge,
                    rule: &row.rule,
                    durability: Durability::Strict,
                    place: 0,
                };
                let party = Party {
                    tenant: (&*row.tenant).into(),
                    action: "".into(),
                };
                let mut entry = self.entry(&line, &party, now);
                entry.kind = Kind::Correction;
                entry.amount = -difference;
                entry.count = 0;
                entry.who = who.into();
                entry.why = "reconciled with the counter".into();
                self.ledger.write(vec![entry]).await.map_err(failed)?;
            }
        }
        Ok(Some(Drift {
            tenant: row.tenant.to_string(),
            rule: row.allowance.to_string(),
            key: row.key,
            period_start: row.period.start,
            ledger: booked,
            counter,
            repaired: repair != Repair::Nothing,
        }))
    }
}
