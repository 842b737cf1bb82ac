//! The questions of clients, independent of protocols: one [`Question`] type for all doors.
//!
//! A door translates its wire form into a [`Question`], has it answered by
//! [`Backend::answer`](crate::backend::Backend::answer), and passes the answer on to `respond`. The
//! bounds of attributes, amounts and texts are checked here, so they are the same at every door.
//!
//! `CL.THROTTLE` is not a question: it brings its own limit and does not use the rules.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::{
    Ask, AskedLease, Attributes, BadHoldName, Demand, HoldName, LeaseToken, Span, Time,
};
use tollgate_core::MAX_AMOUNT;
use tollgate_rules::is_attribute_name;

use crate::http::bounds::{MAX_ATTRIBUTES, MAX_BATCH, MAX_VALUE};

/// A text that is borrowed from the request where it can be.
pub(crate) type Text<'a> = Cow<'a, str>;

/// A question of a client. The question borrows from the request.
pub(crate) enum Question<'a> {
    Check(Check<'a>),
    /// Several checks, each decided on its own.
    Batch(Vec<Check<'a>>),
    /// Several demands, decided together.
    Demands(SmallVec<[Demand<'a>; 2]>),
    /// Returns what a check would answer, and charges nothing.
    Peek(Check<'a>),
    Refund(Refund<'a>),
    Reserve {
        attributes: AttributeMap<'a>,
        units: u64,
        ttl: Option<Span>,
        idempotency_key: Option<Text<'a>>,
    },
    GetReservation(HoldName),
    Commit {
        id: HoldName,
        actual: u64,
    },
    Release(HoldName),
    Extend {
        id: HoldName,
        ttl: Span,
    },
    AcquireLease {
        attributes: AttributeMap<'a>,
        ttl: Option<Span>,
        owner: Text<'a>,
        wait: Span,
        /// Notes the lease, for a door that gives it back if the client goes away.
        asked: Option<Arc<AskedLease>>,
    },
    RenewLease {
        id: HoldName,
        token: LeaseToken,
        /// The rule's `lease` unless given.
        ttl: Option<Span>,
    },
    ReleaseLease {
        id: HoldName,
        token: LeaseToken,
    },
    Holders(AttributeMap<'a>),
    Usage(UsageQuestion<'a>),
}

impl<'a> Question<'a> {
    /// Returns the attributes of a question about one request.
    pub(crate) fn attributes(&self) -> Option<&AttributeMap<'a>> {
        match self {
            Question::Check(it) | Question::Peek(it) => Some(&it.attributes),
            Question::Refund(it) => Some(&it.attributes),
            Question::Reserve { attributes, .. }
            | Question::AcquireLease { attributes, .. }
            | Question::Holders(attributes) => Some(attributes),
            _ => None,
        }
    }
}

/// A request to charge the limits of some attributes, or to read their state.
pub(crate) struct Check<'a> {
    pub(crate) attributes: AttributeMap<'a>,
    pub(crate) ask: Ask,
    /// How long the request may wait for its turn under rules with `max_wait`; zero if it may not.
    pub(crate) wait: Span,
}

/// A request to give back what a check charged.
pub(crate) struct Refund<'a> {
    pub(crate) attributes: AttributeMap<'a>,
    pub(crate) units: u64,
    pub(crate) charged_at: Time,
}

impl<'a> Refund<'a> {
    /// Makes a refund. Without a time, it applies to the latest possible charge.
    pub(crate) fn new(
        attributes: AttributeMap<'a>,
        cost: Option<u64>,
        charged_at_micros: Option<u64>,
    ) -> Result<Refund<'a>, BadQuestion> {
        Ok(Refund {
            attributes,
            units: units(cost)?,
            charged_at: charged_at_micros.map_or(Time::MAX, Time::from_micros),
        })
    }
}

/// A question about a tenant's usage.
#[derive(Debug, Default)]
pub(crate) struct UsageQuestion<'a> {
    pub(crate) tenant: Text<'a>,
    /// A period by name; the current periods unless given.
    pub(crate) period: Option<Text<'a>>,
    pub(crate) action: Option<Text<'a>>,
    pub(crate) rule: Option<Text<'a>>,
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        attributes: AttributeMap<'a>,
        cost: Option<u64>,
        up_to: bool,
    ) -> Result<Check<'a>, BadQuestion> {
        let units = units(cost)?;
        let ask = match up_to {
            true => Ask::UpTo(units),
            false => Ask::Exactly(units),
        };
        Ok(Check {
            attributes,
            ask,
            wait: Span::ZERO,
        })
    }
}

impl UsageQuestion<'_> {
    /// Checks that no text is too long.
    pub(crate) fn within_bounds(self) -> Result<Self, BadQuestion> {
        for (what, text) in [
            ("tenant", Some(&self.tenant)),
            ("period", self.period.as_ref()),
            ("action", self.action.as_ref()),
            ("rule", self.rule.as_ref()),
        ] {
            if text.is_some_and(|text| text.len() > MAX_VALUE) {
                return Err(BadQuestion::LongText { what });
            }
        }
        Ok(self)
    }
}

/// The attributes of a request, within bounds. Borrowed from the request where that is possible.
#[derive(Clone, Default)]
pub(crate) struct AttributeMap<'a>(SmallVec<[(Text<'a>, Text<'a>); 8]>);

impl<'a> AttributeMap<'a> {
    /// Adds an attribute that a client sent.
    pub(crate) fn add(
        &mut self,
        name: impl Into<Text<'a>>,
        value: impl Into<Text<'a>>,
    ) -> Result<(), BadQuestion> {
        let (name, value) = (name.into(), value.into());
        if !is_attribute_name(&name) {
            return Err(BadQuestion::AttributeName {
                name: name.chars().take(80).collect(),
            });
        }
        if self.0.iter().any(|(known, _)| *known == name) {
            return Err(BadQuestion::AttributeTwice {
                name: name.into_owned(),
            });
        }
        if self.0.len() == MAX_ATTRIBUTES {
            return Err(BadQuestion::ManyAttributes);
        }
        if value.len() > MAX_VALUE {
            let (name, length) = (name.into_owned(), value.len());
            return Err(BadQuestion::LongValue { name, length });
        }
        self.0.push((name, value));
        Ok(())
    }

    /// Adds an attribute that a door has derived and checked itself. If a name has several values, the
    /// last one applies.
    pub(crate) fn push(&mut self, name: impl Into<Text<'a>>, value: impl Into<Text<'a>>) {
        self.0.push((name.into(), value.into()));
    }

    /// Returns the value of an attribute. If a name has several values, the last one applies.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter().rev();
        let found = pairs.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_ref())
    }

    pub(crate) fn attributes(&self) -> Attributes<'_> {
        let pairs = self.0.iter();
        pairs
            .map(|(name, value)| (name.as_ref(), value.as_ref()))
            .collect()
    }
}

/// Why a request is invalid. Every door reports it in the same words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadQuestion {
    #[error(
        "{name:?} is not an attribute name: write a letter or _, then letters, digits, _, . or -, at \
         most 64 in all"
    )]
    AttributeName { name: String },
    #[error("attribute {name} is given twice")]
    AttributeTwice { name: String },
    #[error("more than {MAX_ATTRIBUTES} attributes")]
    ManyAttributes,
    #[error("the value of attribute {name} is {length} bytes long; at most {MAX_VALUE}")]
    LongValue { name: String, length: usize },
    #[error("a cost of {cost} is above the largest amount, {MAX_AMOUNT}")]
    LargeCost { cost: u64 },
    #[error("the batch has {count} requests; at most {MAX_BATCH}")]
    LongBatch { count: usize },
    #[error("request {index} of the batch: {error}")]
    InBatch {
        index: usize,
        error: Box<BadQuestion>,
    },
    #[error(transparent)]
    HoldName(#[from] BadHoldName),
    #[error("this is not a lease token: send the `token` that came with the lease")]
    Token,
    #[error("`actual` is missing: send how many units were used")]
    NoActual,
    #[error("`ttl` is missing: send for how long to extend")]
    NoTtl,
    #[error("{what} is longer than {MAX_VALUE} bytes")]
    LongText { what: &'static str },
}

/// Reads a batch with `read`, which reads one of its checks.
pub(crate) fn batch<'a, T>(
    requests: impl ExactSizeIterator<Item = T>,
    read: impl Fn(T) -> Result<Check<'a>, BadQuestion>,
) -> Result<Question<'a>, BadQuestion> {
    let count = requests.len();
    if count > MAX_BATCH {
        return Err(BadQuestion::LongBatch { count });
    }
    let checks = requests.enumerate().map(|(index, request)| {
        read(request).map_err(|error| BadQuestion::InBatch {
            index,
            error: Box::new(error),
        })
    });
    Ok(Question::Batch(checks.collect::<Result<_, _>>()?))
}

/// Checks a cost, and returns its units: 1 unless given.
pub(crate) fn units(cost: Option<u64>) -> Result<u64, BadQuestion> {
    match cost.unwrap_or(1) {
        cost if cost > MAX_AMOUNT => Err(BadQuestion::LargeCost { cost }),
        cost => Ok(cost),
    }
}

/// Reads the token of a lease.
pub(crate) fn token(text: &[u8]) -> Result<LeaseToken, BadQuestion> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.parse().map_err(|_| BadQuestion::Token)
}

/// Converts milliseconds into a span, at most the longest span. The engine rejects a span that is too
/// long.
pub(crate) fn millis(millis: u64) -> Span {
    Span::from_micros(millis.saturating_mul(1000))
}
