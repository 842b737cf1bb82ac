//! Quotas as operators think of them: what a tenant has used and has left of an allowance in a period, whatever the
//! actions and the rules that used it; and how the usage grew.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use serde::Serialize;
use tollgate::{ActiveConfig, Time};
use tollgate_core::Limit;
use tollgate_core::quota::Quota;
use tollgate_ledger::{Entry, EntryQuery, Kind, Period, UsageQuery, UsageRow};
use utoipa::ToSchema;

use super::query::{BURNDOWN, MOST_ROWS, QUOTAS, Wanted};
use super::rows::EntryBody;
use super::{MOST_EXTRA, accounts};
use crate::admin::{Admin, Answer};
use crate::audit::instant;
use crate::period::{self, calendar, limit};
use crate::respond::{self, RequestError};
use crate::usage::add;

/// The most counters of a tenant that are told apart. With more, what is available is not known.
const MOST_COUNTERS: usize = 100_000;
/// The points of a history.
const POINTS: usize = 60;
/// The most entries that are read for a history.
const MOST_ENTRIES: usize = 50_000;
/// The most grants and corrections of a history.
const MOST_CHANGES: usize = 100;

/// Quotas of tenants.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerQuotas)]
#[serde(rename_all = "camelCase")]
pub(super) struct QuotasBody {
    /// By tenant, period and allowance.
    quotas: Vec<QuotaBody>,
    /// Whether there are more.
    is_cut: bool,
}

/// What a tenant has used of an allowance in a period, under all rules and actions.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerQuota)]
#[serde(rename_all = "camelCase")]
pub(super) struct QuotaBody {
    /// Empty if requests named no tenant.
    tenant: String,
    /// The budget, or the rule.
    allowance: String,
    /// The rules that used it: at most 10.
    rules: Vec<String>,
    /// The period by name, such as `2026-07`.
    #[schema(example = "2026-07")]
    period: String,
    #[schema(format = "date-time")]
    period_start: String,
    /// The first instant after the period.
    #[schema(format = "date-time")]
    period_end: String,
    /// The units that the tenant used and reserved.
    used: i64,
    /// How much of `used` is held by open reservations.
    reserved: i64,
    /// The units granted in addition to the limit.
    granted: i64,
    /// How much of `used` comes from corrections.
    corrections: i64,
    requests: u64,
    /// How many counters were added up: one for each subject.
    counters: u64,
    /// The units that all of these counters have: their limits, grants, and units carried over. Null if the rule is
    /// gone, is no quota, or has too many counters.
    #[schema(required = true)]
    available: Option<u64>,
    /// How much of `available` was carried over from the period before. Null if it is not known: the period is
    /// over, or has too many counters.
    #[schema(required = true)]
    carried_over: Option<u64>,
    /// What was used of `available`. More than `used` if other tenants share the counters.
    used_of_available: i64,
}

/// The counters of one tenant, allowance and period.
struct Group {
    sum: UsageRow,
    rules: Vec<Arc<str>>,
    keys: HashSet<u128>,
    /// The sum of the limits; `None` if it is not known.
    limits: Option<u64>,
    /// Whether every counter is now in this period.
    is_current: bool,
}

impl Group {
    fn new(row: &UsageRow) -> Group {
        let nothing = UsageRow {
            used: 0,
            reserved: 0,
            granted: 0,
            corrections: 0,
            requests: 0,
            ..row.clone()
        };
        Group {
            sum: nothing,
            rules: Vec::new(),
            keys: HashSet::new(),
            limits: Some(0),
            is_current: true,
        }
    }

    fn add(&mut self, row: &UsageRow, live: &ActiveConfig, now: Time) {
        add(&mut self.sum, row);
        if self.rules.len() < 10 && !self.rules.contains(&row.rule) {
            self.rules.push(Arc::clone(&row.rule));
        }
        if self.keys.contains(&row.key) {
            return;
        }
        if self.keys.len() == MOST_COUNTERS {
            self.limits = None;
            return;
        }
        self.keys.insert(row.key);
        let quota = quota(live, row);
        let of_one = quota.map(Quota::limit);
        self.limits = self
            .limits
            .zip(of_one)
            .map(|(sum, one)| sum.saturating_add(one));
        self.is_current &=
            quota.is_some_and(|quota| quota.period_at(now).start == row.period.start);
    }

    fn body(&self, live: &ActiveConfig) -> QuotaBody {
        let sum = &self.sum;
        let limit = limit(live, &sum.allowance, &sum.tenant, sum.key);
        QuotaBody {
            tenant: sum.tenant.to_string(),
            allowance: sum.allowance.to_string(),
            rules: self.rules.iter().map(ToString::to_string).collect(),
            period: period::name(&sum.period, limit.and_then(calendar)),
            period_start: instant(sum.period.start),
            period_end: instant(sum.period.end),
            used: sum.used,
            reserved: sum.reserved,
            granted: sum.granted,
            corrections: sum.corrections,
            requests: sum.requests,
            counters: self.keys.len() as u64,
            available: self
                .limits
                .map(|limits| limits.saturating_add_signed(sum.granted)),
            carried_over: None,
            used_of_available: sum.used,
        }
    }
}

/// Returns the quota in force for a counter.
fn quota<'l>(live: &'l ActiveConfig, row: &UsageRow) -> Option<&'l Quota> {
    match limit(live, &row.allowance, &row.tenant, row.key) {
        Some(Limit::Quota(quota)) => Some(quota),
        _ => None,
    }
}

pub(in crate::admin) async fn quotas(
    State(admin): State<Arc<Admin>>,
    RawQuery(query): RawQuery,
) -> Answer {
    let now = admin.control.now();
    let wanted = Wanted::read(query.as_deref(), &QUOTAS, now)?;
    let accounts = accounts(&admin)?;
    let permit = admin.ledger_reads.clone().try_acquire_owned();
    let _permit = permit.map_err(|_| RequestError::LedgerBusy)?;
    let live = admin.control.engine().active();
    let (from, to) = wanted.period.lasts();
    let mut query = UsageQuery {
        tenant: wanted.tenant.clone(),
        from,
        to,
        ..UsageQuery::default()
    };
    let (mut groups, mut open) = (Vec::new(), Vec::<Group>::new());
    // Rows are sorted by tenant, then by start of the period. So a group ends where one of these changes.
    let is_cut = loop {
        let rows = accounts.usage(&query).await?;
        query.after = rows.last().map(UsageRow::cursor);
        for row in &rows {
            let limit = limit(&live, &row.allowance, &row.tenant, row.key);
            if !wanted.period.has(&row.period, limit.and_then(calendar)) {
                continue;
            }
            let is_near = |it: &Group| {
                (&it.sum.tenant, it.sum.period.start) == (&row.tenant, row.period.start)
            };
            if !open.first().is_none_or(is_near) {
                groups.append(&mut open);
            }
            let is_same = |it: &&mut Group| {
                (&it.sum.allowance, it.sum.period) == (&row.allowance, row.period)
            };
            match open.iter_mut().find(is_same) {
                Some(group) => group.add(row, &live, now),
                None => {
                    let mut group = Group::new(row);
                    group.add(row, &live, now);
                    open.push(group);
                }
            }
        }
        if query.after.is_none() {
            groups.append(&mut open);
            break groups.len() > wanted.limit;
        }
        if groups.len() > wanted.limit {
            break true;
        }
    };
    groups.truncate(wanted.limit);
    let mut quotas = Vec::with_capacity(groups.len());
    let mut known = HashMap::new();
    for group in &groups {
        let mut body = group.body(&live);
        if group.is_current && known.len() + group.keys.len() <= MOST_EXTRA {
            let (mut used, mut extra) = (0_i64, 0_u64);
            for key in &group.keys {
                if !known.contains_key(key) {
                    let row = UsageRow {
                        key: *key,
                        ..group.sum.clone()
                    };
                    let Some(quota) = quota(&live, &row) else {
                        continue;
                    };
                    known.insert(*key, accounts.used_and_extra(*key, quota, now).await?);
                }
                let (more_used, more_extra) = known.get(key).copied().unwrap_or_default();
                used = used.saturating_add(more_used);
                extra = extra.saturating_add(more_extra);
            }
            body.available = group.limits.map(|limits| limits.saturating_add(extra));
            let granted = u64::try_from(group.sum.granted).unwrap_or(0);
            body.carried_over = Some(extra.saturating_sub(granted));
            body.used_of_available = used;
        }
        quotas.push(body);
    }
    Ok(respond::report(&QuotasBody { quotas, is_cut }))
}

/// How a tenant used an allowance during a period.
#[derive(Serialize, ToSchema)]
#[schema(as = LedgerBurndown)]
#[serde(rename_all = "camelCase")]
pub(super) struct BurndownBody {
    /// The used units, oldest first.
    points: Vec<BurndownPoint>,
    /// Grants and corrections, oldest first: at most 100.
    changes: Vec<EntryBody>,
    /// Whether there are more entries than were read. The points then end early.
    is_cut: bool,
}

/// What was used at a time.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = LedgerBurndownPoint)]
#[serde(rename_all = "camelCase")]
pub(super) struct BurndownPoint {
    at_epoch_millis: u64,
    /// Used since the start of the period.
    used: i64,
    /// Granted since the start of the period.
    granted: i64,
}

/// The history of one period, at regular times.
struct History {
    start: Time,
    step: u64,
    steps: Vec<(i64, i64)>,
    /// The time of the last entry that was read, of any quota.
    read_to: Time,
}

impl History {
    fn new(period: Period, now: Time) -> History {
        let end = period.end.min(now).as_micros();
        let length = end
            .saturating_sub(period.start.as_micros())
            .max(POINTS as u64);
        History {
            start: period.start,
            step: length.div_ceil(POINTS as u64),
            steps: vec![(0, 0); POINTS],
            read_to: period.start,
        }
    }

    /// Returns the step that a time is in.
    fn place(&self, at: Time) -> usize {
        let since = at.as_micros().saturating_sub(self.start.as_micros());
        let place = usize::try_from(since / self.step).unwrap_or(usize::MAX);
        // A correction may be made after the period.
        place.min(self.steps.len() - 1)
    }

    fn add(&mut self, entry: &Entry) {
        let place = self.place(entry.at);
        let (used, granted) = &mut self.steps[place];
        match entry.kind {
            Kind::Grant => *granted = granted.saturating_add(entry.amount),
            _ => *used = used.saturating_add(entry.amount),
        }
    }

    /// Returns the sums over time. If not all entries were read, the points end at the last entry that was.
    fn points(&self, is_cut: bool) -> Vec<BurndownPoint> {
        let (mut used, mut granted) = (0_i64, 0_i64);
        let known = match is_cut {
            true => self.place(self.read_to) + 1,
            false => self.steps.len(),
        };
        let steps = (1..).zip(&self.steps[..known]);
        let points = steps.map(|(place, (more_used, more_granted))| {
            used = used.saturating_add(*more_used);
            granted = granted.saturating_add(*more_granted);
            let at = self.start.as_micros() + place * self.step;
            BurndownPoint {
                at_epoch_millis: at / 1000,
                used,
                granted,
            }
        });
        points.collect()
    }
}

pub(in crate::admin) async fn burndown(
    State(admin): State<Arc<Admin>>,
    RawQuery(query): RawQuery,
) -> Answer {
    let now = admin.control.now();
    let wanted = Wanted::read(query.as_deref(), &BURNDOWN, now)?;
    let missing = || RequestError::Query("`rule` is missing: name a rule or a budget".to_owned());
    let allowance = wanted.rule.clone().ok_or_else(missing)?;
    let tenant = wanted.tenant.clone().unwrap_or_else(|| "".into());
    let accounts = accounts(&admin)?;
    let permit = admin.ledger_reads.clone().try_acquire_owned();
    let _permit = permit.map_err(|_| RequestError::LedgerBusy)?;
    let live = admin.control.engine().active();
    let mut body = BurndownBody {
        points: Vec::new(),
        changes: Vec::new(),
        is_cut: false,
    };
    let Some(period) = newest(&admin, &live, &wanted, &tenant, &allowance).await? else {
        return Ok(respond::report(&body));
    };
    let mut history = History::new(period, now);
    let mut query = EntryQuery {
        tenant: Some(tenant),
        from: period.start,
        to: Time::from_micros(period.start.as_micros().saturating_add(1)),
        most: MOST_ROWS,
        ..EntryQuery::default()
    };
    let mut read = 0;
    loop {
        let entries = accounts.entries(&query).await?;
        read += entries.len();
        let is_last = entries.len() < query.most;
        for (number, entry) in &entries {
            query.after = *number;
            history.read_to = history.read_to.max(entry.at);
            if entry.allowance != allowance || entry.period != period {
                continue;
            }
            history.add(entry);
            let is_change = matches!(entry.kind, Kind::Grant | Kind::Correction);
            if is_change && body.changes.len() < MOST_CHANGES {
                let limit = limit(&live, &entry.allowance, &entry.tenant, entry.key);
                let calendar = limit.and_then(calendar);
                body.changes.push(EntryBody::of(*number, entry, calendar));
            }
        }
        if is_last {
            break;
        }
        if read >= MOST_ENTRIES {
            body.is_cut = true;
            break;
        }
    }
    body.points = history.points(body.is_cut);
    Ok(respond::report(&body))
}

/// Returns the newest of the wanted periods in which the tenant used the allowance.
async fn newest(
    admin: &Admin,
    live: &ActiveConfig,
    wanted: &Wanted,
    tenant: &Arc<str>,
    allowance: &Arc<str>,
) -> Result<Option<Period>, RequestError> {
    let (from, to) = wanted.period.lasts();
    let mut query = UsageQuery {
        tenant: Some(Arc::clone(tenant)),
        from,
        to,
        ..UsageQuery::default()
    };
    let mut newest: Option<Period> = None;
    loop {
        let rows = accounts(admin)?.usage(&query).await?;
        query.after = rows.last().map(UsageRow::cursor);
        for row in rows.iter().filter(|row| row.allowance == *allowance) {
            let limit = limit(live, &row.allowance, &row.tenant, row.key);
            let is_wanted = wanted.period.has(&row.period, limit.and_then(calendar));
            if is_wanted && newest.is_none_or(|it| it.start < row.period.start) {
                newest = Some(row.period);
            }
        }
        if query.after.is_none() {
            return Ok(newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_adds_up_use_and_grants() {
        let second = 1_000_000;
        let period = Period {
            start: Time::from_micros(100 * second),
            end: Time::from_micros(700 * second),
        };
        let mut history = History::new(period, Time::from_micros(160 * second));
        let entry = |at: u64, kind, amount| Entry {
            at: Time::from_micros(at * second),
            kind,
            amount,
            ..Entry::default()
        };
        for entry in [
            entry(100, Kind::Use, 5),
            entry(102, Kind::Grant, 50),
            entry(130, Kind::Correction, -2),
            entry(900, Kind::Use, 1),
        ] {
            history.add(&entry);
        }
        let points = history.points(false);
        assert_eq!(points.len(), 60);
        let at = |place: usize| {
            let it = &points[place];
            (it.at_epoch_millis, it.used, it.granted)
        };
        assert_eq!(at(0), (101_000, 5, 0));
        assert_eq!(at(2), (103_000, 5, 50));
        assert_eq!(at(30), (131_000, 3, 50));
        assert_eq!(at(59), (160_000, 4, 50));
    }

    #[test]
    fn points_end_with_the_last_entry_if_not_all_were_read() {
        let second = 1_000_000;
        let period = Period {
            start: Time::from_micros(100 * second),
            end: Time::from_micros(700 * second),
        };
        let mut history = History::new(period, Time::from_micros(160 * second));
        history.add(&Entry {
            at: Time::from_micros(110 * second),
            kind: Kind::Use,
            amount: 5,
            ..Entry::default()
        });
        // The last entry that was read is of another quota.
        history.read_to = Time::from_micros(130 * second);
        let points = history.points(true);
        assert_eq!(points.len(), 31);
        assert_eq!(points[30].at_epoch_millis, 131_000);
        assert_eq!(points[30].used, 5);
    }
}
