//! Translates messages of Tollgate's own service to questions.

use std::collections::BTreeMap;

use super::pb;
use crate::question::{
    self, AttributeMap, BadQuestion, Check, Question, Refund, UsageQuestion, millis, token, units,
};

type Read<'a> = Result<Question<'a>, BadQuestion>;

impl pb::CheckRequest {
    fn check(&self) -> Result<Check<'_>, BadQuestion> {
        Check::new(attributes(&self.attributes)?, self.cost, self.up_to)
    }

    pub(super) fn question(&self) -> Read<'_> {
        self.check().map(Question::Check)
    }

    pub(super) fn peek(&self) -> Read<'_> {
        self.check().map(Question::Peek)
    }
}

impl pb::CheckBatchRequest {
    pub(super) fn question(&self) -> Read<'_> {
        question::batch(self.requests.iter(), pb::CheckRequest::check)
    }
}

impl pb::RefundRequest {
    pub(super) fn question(&self) -> Read<'_> {
        let attributes = attributes(&self.attributes)?;
        let refund = Refund::new(attributes, self.cost, self.charged_at_epoch_micros)?;
        Ok(Question::Refund(refund))
    }
}

impl pb::ReserveRequest {
    pub(super) fn question(&self) -> Read<'_> {
        Ok(Question::Reserve {
            attributes: attributes(&self.attributes)?,
            units: units(self.cost)?,
            ttl: self.ttl_millis.map(millis),
            idempotency_key: self.idempotency_key.as_deref().map(Into::into),
        })
    }
}

impl pb::CommitRequest {
    pub(super) fn question(&self) -> Read<'_> {
        let actual = self.actual.ok_or(BadQuestion::NoActual)?;
        Ok(Question::Commit {
            id: self.id.parse()?,
            actual: units(Some(actual))?,
        })
    }
}

impl pb::ReleaseRequest {
    pub(super) fn question(&self) -> Read<'_> {
        Ok(Question::Release(self.id.parse()?))
    }
}

impl pb::ExtendRequest {
    pub(super) fn question(&self) -> Read<'_> {
        Ok(Question::Extend {
            id: self.id.parse()?,
            ttl: millis(self.ttl_millis),
        })
    }
}

impl pb::GetReservationRequest {
    pub(super) fn question(&self) -> Read<'_> {
        Ok(Question::GetReservation(self.id.parse()?))
    }
}

impl pb::AcquireLeaseRequest {
    pub(super) fn question(&self) -> Read<'_> {
        Ok(Question::AcquireLease {
            attributes: attributes(&self.attributes)?,
            ttl: self.ttl_millis.map(millis),
            owner: self.owner.as_str().into(),
            wait: millis(self.wait_millis),
        })
    }
}

impl pb::RenewLeaseRequest {
    pub(super) fn question(&self) -> Read<'_> {
        Ok(Question::RenewLease {
            id: self.id.parse()?,
            token: token(self.token.as_bytes())?,
            ttl: self.ttl_millis.map(millis),
        })
    }
}

impl pb::ReleaseLeaseRequest {
    pub(super) fn question(&self) -> Read<'_> {
        Ok(Question::ReleaseLease {
            id: self.id.parse()?,
            token: token(self.token.as_bytes())?,
        })
    }
}

impl pb::ListHoldersRequest {
    pub(super) fn question(&self) -> Read<'_> {
        Ok(Question::Holders(attributes(&self.attributes)?))
    }
}

impl pb::GetUsageRequest {
    pub(super) fn question(&self) -> Read<'_> {
        let wanted = UsageQuestion {
            tenant: self.tenant.as_str().into(),
            period: self.period.as_deref().map(Into::into),
            action: self.action.as_deref().map(Into::into),
            rule: self.rule.as_deref().map(Into::into),
        };
        wanted.within_bounds().map(Question::Usage)
    }
}

fn attributes(map: &BTreeMap<String, String>) -> Result<AttributeMap<'_>, BadQuestion> {
    let mut attributes = AttributeMap::default();
    for (name, value) in map {
        attributes.add(name.as_str(), value.as_str())?;
    }
    Ok(attributes)
}
