//! The fields of plans, tenants and budgets.

use super::{RawAlgorithm, RawEstimate};
use crate::document::{
    Amount, Duration, Field, Flag, Lease, List, Named, RateOrUnlimited, Text, Whole, section,
};
use crate::limits::Written;
use crate::period::{Every, Start};
use crate::placement::Placement;
use crate::rule::Durability;
use crate::share::{Carried, Grace, Overdraft};
use crate::zone::ZoneFrom;

section! {
    /// Numbers that replace those of a rule or a budget. Numbers that are left out stay as they are.
    pub(crate) struct RawNumbers is "numbers" {
        /// The most in a window or a period, or at the same time for concurrency.
        limit: Amount = "limit",
        /// The length of a window, for fixed-window, sliding-log and sliding-counter.
        window: Duration = "window",
        /// The period of a quota: hour, day, week, month or year, or several, such as 3 months.
        period: Every = "period",
        /// The time zone in which the periods of a quota begin: a name such as Europe/Berlin, or tenant for each tenant's own.
        timezone: ZoneFrom = "timezone",
        /// The day that the period of a quota begins on: 1 to 31 of a month, monday to sunday of a week, or a month and a day of a year, such as 04-01.
        anchor: Start = "anchor",
        /// How much a quota admits beyond its limit, with a warning: an amount, or a share of the limit such as 10%.
        grace: Grace = "grace",
        /// How much of the unused rest of a quota's period goes into the next: an amount, or a share such as 10%.
        carry_over: Carried = "carry_over",
        /// How long a slot of concurrency is held unless it is renewed, 100ms to 24h.
        lease: Lease = "lease",
        /// Into how many parts a sliding-counter divides its window.
        buckets: Whole = "buckets",
        /// The most tokens, for token-bucket.
        capacity: Amount = "capacity",
        /// How fast tokens return, for token-bucket.
        refill: RateOrUnlimited = "refill",
        /// How fast, for gcra and leaky-bucket.
        rate: RateOrUnlimited = "rate",
        /// How many at once, for gcra.
        burst: Whole = "burst",
        /// How many may wait, for leaky-bucket.
        queue: Whole = "queue",
        /// The longest wait that shaping may ask for.
        max_wait: Duration = "max_wait",
    }
}

section! {
    /// A tenant: its plan, and the numbers that are its own.
    pub(crate) struct RawTenant is "a tenant" {
        /// The tenant's plan (default: default_plan).
        plan: Text = "plan",
        /// The time zone of its quotas, such as Europe/Berlin, if neither rule nor plan names one (default UTC).
        timezone: Text = "timezone",
        /// Numbers that are its own, by rule or budget.
        overrides: Named<RawNumbers> = "overrides",
    }
}

section! {
    /// A budget: one allowance that several rules draw on.
    pub(crate) struct RawBudget is "a budget" {
        /// The attributes that make the subject. Without any, all requests share one allowance.
        per: List<Text> = "per",
        /// How to count.
        algorithm (required): RawAlgorithm = "algorithm",
        /// The most in a window or a period, or at the same time for concurrency.
        limit: Amount = "limit",
        /// The length of a window, for fixed-window, sliding-log and sliding-counter.
        window: Duration = "window",
        /// The period of a quota: hour, day, week, month or year, or several, such as 3 months.
        period: Every = "period",
        /// The time zone in which the periods of a quota begin: a name such as Europe/Berlin, or tenant for each tenant's own. Default: the tenant's if the allowance is per tenant, otherwise UTC.
        timezone: ZoneFrom = "timezone",
        /// The day that the period of a quota begins on: 1 to 31 of a month, monday to sunday of a week, or a month and a day of a year, such as 04-01. Default: the first.
        anchor: Start = "anchor",
        /// How much a quota admits beyond its limit, with a warning: an amount, or a share of the limit such as 10%.
        grace: Grace = "grace",
        /// How long a slot of concurrency is held unless it is renewed, 100ms to 24h (default 30s).
        lease: Lease = "lease",
        /// Into how many parts a sliding-counter divides its window (default 10).
        buckets: Whole = "buckets",
        /// A cheaper sliding-counter that estimates from two windows.
        estimate: RawEstimate = "estimate",
        /// The most tokens, for token-bucket.
        capacity: Amount = "capacity",
        /// How fast tokens return, for token-bucket.
        refill: RateOrUnlimited = "refill",
        /// How fast, for gcra and leaky-bucket.
        rate: RateOrUnlimited = "rate",
        /// How many at once, for gcra (default: the amount of the rate).
        burst: Whole = "burst",
        /// How many may wait, for leaky-bucket (default 0).
        queue: Whole = "queue",
        /// Whether a leaky-bucket makes requests wait instead of denying them.
        shape: Flag = "shape",
        /// The longest wait that shaping may ask for.
        max_wait: Duration = "max_wait",
        /// Which keys share a slot of a Redis cluster (default tenant).
        placement: Placement = "placement",
        /// How counts carry over when numbers change (default keep). On a quota also an amount or a share such as 10%: how much of the unused rest of a period goes into the next.
        carry_over: Carried = "carry_over",
        /// Whether a quota is recorded in the ledger: async, strict to write before answering, or none. Default: async if there is a ledger.
        durability: Durability = "durability",
        /// How far the allowance may be overdrawn when a reservation is settled for more than it held: an amount, a share of the limit such as 10%, or unlimited. Default: unlimited for quotas, 0 for rates.
        overdraft: Overdraft = "overdraft",
    }
}

impl RawNumbers {
    pub(crate) fn written(&self) -> Written<'_> {
        Written {
            limit: &self.limit,
            window: &self.window,
            period: &self.period,
            timezone: &self.timezone,
            anchor: &self.anchor,
            grace: &self.grace,
            carry_over: &self.carry_over,
            lease: &self.lease,
            buckets: &self.buckets,
            estimate: &Field::Absent,
            capacity: &self.capacity,
            refill: &self.refill,
            rate: &self.rate,
            burst: &self.burst,
            queue: &self.queue,
            shape: &Field::Absent,
            max_wait: &self.max_wait,
        }
    }
}

/// The numbers of a section that has all of them.
macro_rules! written {
    ($section:ident) => {
        impl $section {
            pub(crate) fn written(&self) -> $crate::limits::Written<'_> {
                $crate::limits::Written {
                    limit: &self.limit,
                    window: &self.window,
                    period: &self.period,
                    timezone: &self.timezone,
                    anchor: &self.anchor,
                    grace: &self.grace,
                    carry_over: &self.carry_over,
                    lease: &self.lease,
                    buckets: &self.buckets,
                    estimate: &self.estimate,
                    capacity: &self.capacity,
                    refill: &self.refill,
                    rate: &self.rate,
                    burst: &self.burst,
                    queue: &self.queue,
                    shape: &self.shape,
                    max_wait: &self.max_wait,
                }
            }
        }
    };
}
pub(super) use written;

written!(RawBudget);
