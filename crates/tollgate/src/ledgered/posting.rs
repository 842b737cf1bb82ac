//! Corrections and grants that operators write into the ledger.

use tollgate_config::{Attributes, RequestLimits};
use tollgate_core::{Charge, Limit, Time};
use tollgate_ledger::{EntryId, EntrySummary, Kind};
use tollgate_store::{Ask, Store, StoreError};

use super::entries::{recorded_charges, signed};
use super::{LedgerSync, derived_id, unavailable};
use crate::accounts::Accounts;

/// A correction or a grant.
#[derive(Clone, Copy, Debug)]
pub struct Posting<'a> {
    /// The rule or the budget of the counter.
    pub rule: &'a str,
    /// The kind and the amount.
    pub what: Posted,
    /// The operator.
    pub who: &'a str,
    /// The reason. It must not be empty.
    pub why: &'a str,
    /// The idempotency key: repeats are ignored, a different posting is rejected.
    pub idempotency_key: Option<&'a str>,
}

/// The change that a posting makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Adds to the usage, or subtracts from it.
    Correction(i64),
    /// Adds to the amount that may be used in this period.
    Grant(u64),
}

/// The state of a counter after a posting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The rule or the budget.
    pub rule: String,
    /// The usage.
    pub used: u64,
    /// The amount that may be used in addition to the limit.
    pub extra: u64,
    /// The limit.
    pub limit: u64,
    /// When the period ends.
    pub ends_at: Time,
    /// Whether this was a repeat that changed nothing.
    pub repeated: bool,
}

/// Why a posting or a comparison failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PostError {
    /// No such rule applies, or its usage is not recorded.
    #[error(
        "no ledgered rule `{rule}` applies to these attributes: give all that the rule has in `match` and `per`"
    )]
    NoSuchCounter {
        /// The rule that was named.
        rule: String,
    },
    /// A reason is missing.
    #[error("the reason is missing: say what this correction or grant is for")]
    NoReason,
    /// An amount out of range.
    #[error(
        "the amount must be from 1 to 2^52 for a grant, or from -2^52 to 2^52 and not 0 for a correction"
    )]
    Amount,
    /// The idempotency key was used for something else.
    #[error(
        "the idempotency key `{key}` was used for another posting: a {kind} of {amount}{}; take a new key",
        if *.is_same_counter { "" } else { " at another counter" }
    )]
    Conflict {
        /// The key.
        key: String,
        /// The kind of the first posting under the key.
        kind: Kind,
        /// The amount of the first posting, after it was limited to the usage.
        amount: i64,
        /// Whether the first posting was at the same counter.
        is_same_counter: bool,
    },
    /// There is no ledger.
    #[error("no ledger is configured: add a `ledger` section")]
    NoLedger,
    /// The store or the ledger does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store> Accounts<'_, S> {
    /// Writes a correction or a grant into the ledger, and sets the counter accordingly.
    ///
    /// # Errors
    /// If there is no such counter, the reason is missing, or the store or the ledger does not answer.
    pub async fn post(
        &self,
        attributes: &Attributes<'_>,
        posting: &Posting<'_>,
    ) -> Result<Standing, PostError> {
        let (sync, store, active) = (self.sync, self.limiter.store(), self.limiter.active());
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
        let request_limits = RequestLimits::default();
        let resolution = active.rules().resolve(attributes, &request_limits);
        let found = recorded_charges(&resolution.charges)
            .find(|it| it.labels.rule == posting.rule || it.charge.rule == posting.rule);
        let line = found.ok_or_else(|| PostError::NoSuchCounter {
            rule: posting.rule.to_owned(),
        })?;
        let charge = *line.charge;
        // A peek restores the count if the store has lost it.
        let peeked = store.peek(&[charge], Ask::Exactly(0)).await?;
        let mut entry = sync.entry(&line, peeked.now);
        entry.kind = kind;
        entry.amount = amount;
        entry.count = 0;
        entry.who = posting.who.into();
        entry.why = posting.why.into();
        if let Some(key) = posting.idempotency_key {
            entry.idempotency_key = Some(key.into());
            entry.id = derived_id(&[b"posting", sync.namespace.as_bytes(), key.as_bytes()]);
        }
        let (id, asked) = (entry.id, (kind, amount));
        // One posting at a time for each idempotency key and each counter. So a repeat is done once, and
        // two postings do not take back the same usage.
        let keys = [id.0, charge.key.bits()];
        let _alone = sync.alone_all(keys.into_iter()).await?;
        if sync.was_posted(id, &charge, asked, posting).await? {
            return self.standing(&charge, true).await;
        }
        // A correction never takes back more than was used. Reserved amounts do not count: they come
        // back when their reservations end.
        let mut used = used;
        if used < 0 {
            let before = store.balance(&charge).await?.unwrap_or_default();
            let reserved = sync.reserved_of(&charge, peeked.now).await?;
            used = used.max(-signed(before.used.saturating_sub(reserved)));
        }
        if kind == Kind::Correction && used != amount {
            entry.amount = used;
            entry.why = format!("{}{}", posting.why, cut_from(amount)).into();
        }
        // The ledger is written first. If the store fails after that, a repeat finds the posting in the
        // ledger, and the counter shows drift.
        let written = sync.ledger.write_new(vec![entry]).await;
        if !written.map_err(unavailable)? {
            // Meanwhile another process has made the same posting, and has set the counter.
            sync.was_posted(id, &charge, asked, posting).await?;
            return self.standing(&charge, true).await;
        }
        store.adjust(&charge, used, extra).await?;
        self.standing(&charge, false).await
    }

    async fn standing(&self, charge: &Charge<'_>, repeated: bool) -> Result<Standing, PostError> {
        let balance = self.limiter.store().balance(charge).await?;
        let balance = balance.unwrap_or_default();
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
}

impl LedgerSync {
    /// Returns whether the same posting was made under this id before. A different posting is a
    /// conflict.
    async fn was_posted(
        &self,
        id: EntryId,
        charge: &Charge<'_>,
        (kind, amount): (Kind, i64),
        posting: &Posting<'_>,
    ) -> Result<bool, PostError> {
        let Some(key) = posting.idempotency_key else {
            return Ok(false);
        };
        let Some(known) = self.ledger.summary(id).await.map_err(unavailable)? else {
            return Ok(false);
        };
        let is_same_counter = known.key == charge.key.bits();
        if is_same_counter && known.kind == kind && was_asked(&known, amount) {
            return Ok(true);
        }
        Err(PostError::Conflict {
            key: key.to_owned(),
            kind: known.kind,
            amount: known.amount,
            is_same_counter,
        })
    }
}

/// The end of the reason of a correction that was limited to the recorded usage.
const CUT: &str = " was asked for, and no more was used)";

/// Returns the text that a limited correction adds to its reason.
fn cut_from(asked: i64) -> String {
    format!(" ({asked}{CUT}")
}

/// Returns whether an entry was posted with this requested amount.
fn was_asked(known: &EntrySummary, amount: i64) -> bool {
    match known.why.ends_with(CUT) {
        true => known.why.ends_with(&cut_from(amount)),
        false => known.amount == amount,
    }
}
