//! The numbers of a request that are in no table: its subject has overrides of its own, or it names another
//! plan than that of its tenant, which has numbers of its own.

use std::sync::Arc;

use super::{OwnOverrides, Resolved};
use crate::overrides::Override;
use crate::request::Request;
use crate::rule::Rule;
use crate::ruleset::{Compiled, RuleSet};

impl RuleSet {
    /// Returns the numbers of a rule for a request whose subject has overrides of its own, or that names
    /// another plan than that of its tenant; `None` if they are in the tables. Computed for each request,
    /// because such requests are few.
    #[inline]
    pub(crate) fn changed_for_subject(
        &self,
        rule: &Rule,
        compiled: &Compiled,
        own_overrides: &[Arc<Override>],
        request: &Request<'_, '_>,
    ) -> Option<Resolved> {
        let tier = self.tier(request);
        let is_mixed = tier.is_some_and(|tier| tier.is_mixed);
        if own_overrides.is_empty() && !is_mixed {
            return None;
        }
        let mut own = OwnOverrides::from(own_overrides);
        own.retain(|it| {
            let named = it.rule().is_none_or(|name| *name == **rule.allowance());
            named && it.scope().has_own_allowance(&rule.per, &self.layers.tiers)
        });
        if own.is_empty() && !is_mixed {
            return None;
        }
        let tenant = self.tenant.and_then(|id| request.values[id as usize]);
        let plan = tier.and_then(|tier| tier.plan);
        let allowance = &self.tables.allowances[compiled.allowance as usize];
        Some(self.layers.resolve(allowance, plan, tenant, &own))
    }
}
