//! Messages in, attributes and amounts out, within the bounds of the HTTP door.

use std::collections::BTreeMap;

use tollgate::{Acquire, Ask, Attributes, BadHoldName, HoldName, LeaseToken, Reserve, Span, Time};
use tollgate_core::MAX_AMOUNT;
use tollgate_rules::is_attribute_name;

use super::pb;
use crate::http::bounds::{MAX_ATTRIBUTES, MAX_BATCH, MAX_VALUE};
use crate::usage::UsageOf;

/// Why a message cannot be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadMessage {
    #[error("there are {count} attributes; at most {MAX_ATTRIBUTES}")]
    ManyAttributes { count: usize },
    #[error(
        "{name:?} is not an attribute name: write a letter or _, then letters, digits, _, . or -, at \
         most 64 in all"
    )]
    AttributeName { name: String },
    #[error("the value of attribute {name} is {length} bytes long; at most {MAX_VALUE}")]
    LongValue { name: String, length: usize },
    #[error("a cost of {cost} is above the largest amount, {MAX_AMOUNT}")]
    LargeCost { cost: u64 },
    #[error(transparent)]
    Name(#[from] BadHoldName),
    #[error("this is no token of a lease: use the `token` as it was given")]
    Token,
    #[error("say how much was used: `actual`")]
    NoActual,
    #[error("{what} is longer than {MAX_VALUE} bytes")]
    LongText { what: &'static str },
    #[error("the batch holds {count} requests; at most {MAX_BATCH}")]
    LongBatch { count: usize },
    #[error("request {index} of the batch: {wrong}")]
    InBatch {
        index: usize,
        wrong: Box<BadMessage>,
    },
}

impl pb::CheckRequest {
    pub(super) fn read(&self) -> Result<(Attributes<'_>, Ask), BadMessage> {
        let units = units(self.cost)?;
        let ask = match self.up_to {
            true => Ask::UpTo(units),
            false => Ask::Exactly(units),
        };
        Ok((attributes(&self.attributes)?, ask))
    }
}

impl pb::CheckBatchRequest {
    pub(super) fn read(&self) -> Result<Vec<(Attributes<'_>, Ask)>, BadMessage> {
        if self.requests.len() > MAX_BATCH {
            return Err(BadMessage::LongBatch {
                count: self.requests.len(),
            });
        }
        let requests = self.requests.iter().enumerate().map(|(index, request)| {
            request.read().map_err(|wrong| BadMessage::InBatch {
                index,
                wrong: Box::new(wrong),
            })
        });
        requests.collect()
    }
}

impl pb::RefundRequest {
    /// Not knowing when it was taken is the same as the latest possible instant.
    pub(super) fn read(&self) -> Result<(Attributes<'_>, u64, Time), BadMessage> {
        let charged_at = self.charged_at_epoch_micros;
        Ok((
            attributes(&self.attributes)?,
            units(self.cost)?,
            charged_at.map_or(Time::MAX, Time::from_micros),
        ))
    }
}

impl pb::ReserveRequest {
    pub(super) fn read(&self) -> Result<(Attributes<'_>, Reserve<'_>), BadMessage> {
        let wish = Reserve {
            units: units(self.cost)?,
            ttl: self.ttl_millis.map(millis),
            idempotency_key: self.idempotency_key.as_deref(),
        };
        Ok((attributes(&self.attributes)?, wish))
    }
}

impl pb::CommitRequest {
    pub(super) fn read(&self) -> Result<(HoldName, u64), BadMessage> {
        let actual = self.actual.ok_or(BadMessage::NoActual)?;
        Ok((self.id.parse()?, units(Some(actual))?))
    }
}

impl pb::ExtendRequest {
    pub(super) fn read(&self) -> Result<(HoldName, Span), BadMessage> {
        Ok((self.id.parse()?, millis(self.ttl_millis)))
    }
}

impl pb::AcquireLeaseRequest {
    pub(super) fn read(&self) -> Result<(Attributes<'_>, Acquire<'_>), BadMessage> {
        let wish = Acquire {
            ttl: self.ttl_millis.map(millis),
            owner: &self.owner,
            wait: millis(self.wait_millis),
        };
        Ok((attributes(&self.attributes)?, wish))
    }
}

impl pb::RenewLeaseRequest {
    pub(super) fn read(&self) -> Result<(HoldName, LeaseToken, Option<Span>), BadMessage> {
        let ttl = self.ttl_millis.map(millis);
        Ok((self.id.parse()?, token(&self.token)?, ttl))
    }
}

impl pb::ReleaseLeaseRequest {
    pub(super) fn read(&self) -> Result<(HoldName, LeaseToken), BadMessage> {
        Ok((self.id.parse()?, token(&self.token)?))
    }
}

impl pb::ListHoldersRequest {
    pub(super) fn read(&self) -> Result<Attributes<'_>, BadMessage> {
        attributes(&self.attributes)
    }
}

impl pb::GetUsageRequest {
    pub(super) fn read(&self) -> Result<UsageOf<'_>, BadMessage> {
        let of = UsageOf {
            tenant: &self.tenant,
            period: self.period.as_deref(),
            action: self.action.as_deref(),
            rule: self.rule.as_deref(),
        };
        for (what, text) in [
            ("tenant", Some(of.tenant)),
            ("period", of.period),
            ("action", of.action),
            ("rule", of.rule),
        ] {
            if text.is_some_and(|text| text.len() > MAX_VALUE) {
                return Err(BadMessage::LongText { what });
            }
        }
        Ok(of)
    }
}

/// So many milliseconds, or as many as there can be: too many are refused by name later.
fn millis(millis: u64) -> Span {
    Span::from_micros(millis.saturating_mul(1000))
}

fn token(text: &str) -> Result<LeaseToken, BadMessage> {
    text.parse().map_err(|_| BadMessage::Token)
}

fn units(cost: Option<u64>) -> Result<u64, BadMessage> {
    match cost.unwrap_or(1) {
        cost if cost > MAX_AMOUNT => Err(BadMessage::LargeCost { cost }),
        cost => Ok(cost),
    }
}

fn attributes(map: &BTreeMap<String, String>) -> Result<Attributes<'_>, BadMessage> {
    if map.len() > MAX_ATTRIBUTES {
        return Err(BadMessage::ManyAttributes { count: map.len() });
    }
    for (name, value) in map {
        if !is_attribute_name(name) {
            let name = name.chars().take(80).collect();
            return Err(BadMessage::AttributeName { name });
        }
        if value.len() > MAX_VALUE {
            let (name, length) = (name.clone(), value.len());
            return Err(BadMessage::LongValue { name, length });
        }
    }
    let pairs = map.iter();
    Ok(pairs
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect())
}
