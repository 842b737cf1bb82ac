//! Messages in, attributes and amounts out, within the bounds of the HTTP door.

use std::collections::BTreeMap;

use tollgate::{Ask, Attributes, Time};
use tollgate_core::MAX_AMOUNT;
use tollgate_rules::is_attribute_name;

use super::pb;
use crate::http::bounds::{MAX_ATTRIBUTES, MAX_BATCH, MAX_VALUE};

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
