//! Translates Envoy's request to demands. Each descriptor becomes one demand, and its entries become
//! attributes. The domain is an attribute of every demand.

use crate::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use smallvec::SmallVec;
use tollgate::{Attributes, Demand, Effect, Numbers};
use tollgate_core::MAX_AMOUNT;
use tollgate_rules::is_attribute_name;

use super::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES, MAX_VALUE};
use super::units;

/// The attribute that holds the domain.
pub(super) const DOMAIN: &str = "domain";

/// Why a request is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRequest {
    #[error("the request has no domain")]
    NoDomain,
    #[error("the domain has {length} bytes; at most {MAX_VALUE} are allowed")]
    LongDomain { length: usize },
    #[error("the request has no descriptors")]
    NoDescriptors,
    #[error("the request has {count} descriptors; at most {MAX_DESCRIPTORS} are allowed")]
    ManyDescriptors { count: usize },
    #[error("descriptor {descriptor} {what}")]
    Descriptor {
        descriptor: usize,
        what: BadDescriptor,
    },
}

/// Why a descriptor is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadDescriptor {
    #[error("has no entries")]
    NoEntries,
    #[error("has {count} entries; at most {MAX_ENTRIES} are allowed")]
    ManyEntries { count: usize },
    #[error(
        "has the key {key:?}, which is not an attribute name: start with a letter or _, go on with \
         letters, digits, _, . or -, and use at most 64 characters"
    )]
    BadKey { key: String },
    #[error("has the key domain, which is reserved for the domain of the request")]
    DomainKey,
    #[error("has the key {key} twice; give its entries different names with descriptor_key")]
    TwiceKey { key: String },
    #[error("has a value of {length} bytes for {key}; at most {MAX_VALUE} are allowed")]
    LongValue { key: String, length: usize },
    #[error("has hits_addend {hits}; at most {MAX_AMOUNT} is allowed")]
    ManyHits { hits: u64 },
    #[error("has a limit with an unknown unit; use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR")]
    NoUnit,
}

/// Makes one demand for each descriptor of `request`.
pub(super) fn demands(request: &RateLimitRequest) -> Result<SmallVec<[Demand<'_>; 2]>, BadRequest> {
    let domain = request.domain.as_str();
    match (domain.len(), request.descriptors.len()) {
        (0, _) => return Err(BadRequest::NoDomain),
        (length, _) if length > MAX_VALUE => return Err(BadRequest::LongDomain { length }),
        (_, 0) => return Err(BadRequest::NoDescriptors),
        (_, count) if count > MAX_DESCRIPTORS => {
            return Err(BadRequest::ManyDescriptors { count });
        }
        _ => {}
    }
    let demands = request.descriptors.iter().enumerate();
    let demands = demands.map(|(descriptor, it)| {
        demand(domain, it, request.hits_addend)
            .map_err(|what| BadRequest::Descriptor { descriptor, what })
    });
    demands.collect()
}

fn demand<'a>(
    domain: &'a str,
    descriptor: &'a RateLimitDescriptor,
    hits_of_request: u32,
) -> Result<Demand<'a>, BadDescriptor> {
    let numbers = match &descriptor.limit {
        None => None,
        Some(limit) => Some(Numbers {
            amount: u64::from(limit.requests_per_unit),
            period: units::period(limit.unit).ok_or(BadDescriptor::NoUnit)?,
        }),
    };
    let attributes = attributes(domain, descriptor)?;
    // A descriptor with 0 hits of its own charges nothing. In the request itself, 0 is the default and
    // means 1.
    let hits = descriptor.hits_addend;
    let effect = match hits.unwrap_or_else(|| u64::from(hits_of_request.max(1))) {
        0 => Effect::Look,
        hits if hits > MAX_AMOUNT => return Err(BadDescriptor::ManyHits { hits }),
        hits if descriptor.is_negative_hits => Effect::GiveBack(hits),
        hits => Effect::Take(hits),
    };
    Ok(Demand {
        attributes,
        effect,
        numbers,
    })
}

fn attributes<'a>(
    domain: &'a str,
    descriptor: &'a RateLimitDescriptor,
) -> Result<Attributes<'a>, BadDescriptor> {
    match descriptor.entries.len() {
        0 => return Err(BadDescriptor::NoEntries),
        count if count > MAX_ENTRIES => return Err(BadDescriptor::ManyEntries { count }),
        _ => {}
    }
    let mut attributes = Attributes::from([(DOMAIN, domain)]);
    for entry in &descriptor.entries {
        let (key, value) = (entry.key.as_str(), entry.value.as_str());
        if key == DOMAIN {
            return Err(BadDescriptor::DomainKey);
        }
        if !is_attribute_name(key) {
            let key = key.chars().take(80).collect();
            return Err(BadDescriptor::BadKey { key });
        }
        if attributes.get(key).is_some() {
            let key = key.to_owned();
            return Err(BadDescriptor::TwiceKey { key });
        }
        if value.len() > MAX_VALUE {
            let (key, length) = (key.to_owned(), value.len());
            return Err(BadDescriptor::LongValue { key, length });
        }
        attributes.push(key, value);
    }
    Ok(attributes)
}
