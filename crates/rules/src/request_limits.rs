//! Limits that requests bring in an attribute.

use std::cell::OnceCell;

use tollgate_core::{Algorithm, Limit, Rate, Span};

use crate::document::{rate, whole};
use crate::layers::{Resolved, scaled};
use crate::limits::Numbers;
use crate::rule::{Ceiling, LimitFrom};
use crate::symbols::{AttributeId, Symbols};

/// Keeps the limits that a request brings, while the request is decided. The first one needs no allocation.
#[derive(Debug, Default)]
pub struct RequestLimits {
    first: OnceCell<Limit>,
    more: OnceCell<Box<RequestLimits>>,
}

impl RequestLimits {
    /// Keeps `limit` and returns a reference to it.
    #[inline]
    pub fn keep(&self, limit: Limit) -> &Limit {
        match self.first.get() {
            None => self.first.get_or_init(|| limit),
            Some(_) => self.more.get_or_init(Box::default).keep_next(limit),
        }
    }

    #[cold]
    fn keep_next(&self, limit: Limit) -> &Limit {
        let mut last = self;
        while last.first.get().is_some() {
            last = last.more.get_or_init(Box::default);
        }
        last.first.get_or_init(|| limit)
    }
}

/// The attribute in which a request may bring a limit.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) id: AttributeId,
    ceiling: Ceiling,
    /// The time that a number without a unit refers to.
    period: Span,
}

impl Source {
    pub(crate) fn new(from: &LimitFrom, numbers: &Numbers, symbols: &mut Symbols) -> Source {
        let rate = numbers.rate.or(numbers.refill).and_then(|it| it.0);
        let period = numbers.window.map(|it| it.0);
        let period = period.or(rate.map(Rate::period));
        Source {
            id: symbols.intern(&from.attribute),
            ceiling: from.ceiling,
            period: period.unwrap_or(Span::SECOND),
        }
    }

    /// Returns the limit that `value` asks for instead of `base`, and whether the ceiling has replaced
    /// the value. `None` if `value` is not a possible limit.
    pub(crate) fn limit(&self, base: &Resolved, value: &str) -> Option<(Limit, bool)> {
        let (limit, capped) = match self.ceiling {
            Ceiling::Amount(most) => {
                let amount = whole(value).ok()?;
                let held = amount.min(most);
                let window = match base.limit.window() {
                    Span::ZERO => self.period,
                    window => window,
                };
                let limit = match &base.terms {
                    Some(terms) => terms.limit(held),
                    None => base.limit.renumbered(held, window),
                };
                (limit, amount > most)
            }
            Ceiling::Rate(most) => {
                let Some(asked) = self.rate(value)? else {
                    let none = base.limit.renumbered(0, self.period).ok()?;
                    return Some((scaled(&none, base.scale, None), false));
                };
                let capped = is_faster(asked, most);
                let rate = if capped { most } else { asked };
                // The rate of the request, with at most the capacity of the ceiling.
                let holds = rate.amount().min(most.amount());
                let limit = match base.limit.algorithm() {
                    Algorithm::Gcra => Limit::gcra(rate, holds),
                    Algorithm::TokenBucket => Limit::token_bucket(holds, rate),
                    _ => base.limit.renumbered(rate.amount(), rate.period()),
                };
                (limit, capped)
            }
        };
        let terms = base.terms.as_deref();
        Some((scaled(&limit.ok()?, base.scale, terms), capped))
    }

    /// Reads the rate that a value asks for: `Some(None)` for 0, `None` if the value is not a rate.
    #[allow(clippy::option_option)] // The outer `None` means that the value is not a rate.
    fn rate(&self, value: &str) -> Option<Option<Rate>> {
        let (amount, rate) = match value.split_once('/') {
            Some((amount, _)) => (amount, rate(value).ok()),
            None => {
                let amount = whole(value).ok()?;
                (value, Rate::new(amount, self.period).ok())
            }
        };
        match whole(amount).ok()? {
            0 => Some(None),
            _ => rate.map(Some),
        }
    }
}

fn is_faster(rate: Rate, than: Rate) -> bool {
    let product = |a: Rate, b: Rate| u128::from(a.amount()) * u128::from(b.period().as_micros());
    product(rate, than) > product(than, rate)
}
