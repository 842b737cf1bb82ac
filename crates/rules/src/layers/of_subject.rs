//! The numbers of a subject that has overrides of its own.

use std::sync::Arc;

use super::{OwnOverrides, Resolved};
use crate::overrides::Override;
use crate::rule::Rule;
use crate::ruleset::{Compiled, Request, RuleSet};

impl RuleSet {
    /// Returns the numbers of a rule for a request whose subject has overrides of its own; `None` if none
    /// of `own_overrides` concerns the rule. Computed for each request, because such subjects are few.
    #[inline]
    pub(crate) fn changed_for_subject(
        &self,
        rule: &Rule,
        compiled: &Compiled,
        own_overrides: &[Arc<Override>],
        request: &Request<'_, '_>,
    ) -> Option<Resolved> {
        if own_overrides.is_empty() {
            return None;
        }
        let mut own = OwnOverrides::from(own_overrides);
        own.retain(|it| {
            let named = it.rule().is_none_or(|name| *name == **rule.allowance());
            named && it.scope().has_own_allowance(&rule.per)
        });
        if own.is_empty() {
            return None;
        }
        let tenant = self.tenant.and_then(|id| request.values[id as usize]);
        let plan = tenant.and_then(|tenant| self.layers.plan_of(tenant));
        let allowance = &self.tables.allowances[compiled.allowance as usize];
        Some(self.layers.resolve(allowance, plan, tenant, &own))
    }
}
