//! Plans and tenants. Their numbers may differ from the numbers of the rules.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::{CarryOver, Span, Zone};

use crate::adaptation::Adaptation;
use crate::layers::is_by_tenant;
use crate::limits::{Counting, Numbers};
use crate::placement::Placement;
use crate::rule::{Durability, RuleStore};
use crate::share::Overdraft;

/// Numbers that replace those of a rule or a budget, by its name.
pub(crate) type Patches = Box<[(Arc<str>, Numbers)]>;

/// Plans and tenants with their numbers.
#[derive(Clone, Debug, Default)]
pub struct Tiers {
    pub(crate) plans: Vec<Plan>,
    pub(crate) default_plan: Option<u16>,
    /// The attribute that names the plan of a request.
    pub(crate) plan_from: Option<String>,
    /// Tenants, by the value of the attribute `tenant`. The `Arc` saves copies of tens of thousands.
    pub(crate) tenants: Arc<HashMap<Box<str>, Tenant>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: Arc<str>,
    pub(crate) patches: Patches,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tenant {
    /// An index of the plans.
    pub(crate) plan: Option<u16>,
    /// The zone of the tenant's quotas, if neither rule nor plan names one.
    pub(crate) zone: Option<Zone>,
    pub(crate) patches: Patches,
}

/// An allowance that several rules draw on.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) name: Arc<str>,
    pub(crate) allowance: Allowance,
}

/// The subject, the algorithm and the terms of a rule's own allowance or of a budget.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    pub(crate) per: Vec<String>,
    pub(crate) counting: Counting,
    pub(crate) placement: Placement,
    pub(crate) store: RuleStore,
    pub(crate) carry_over: CarryOver,
    pub(crate) durability: Durability,
    /// Whether the text leaves `durability` out, so that it is `async` if there is a ledger.
    pub(crate) durable_by_default: bool,
    pub(crate) overdraft: Option<Overdraft>,
    pub(crate) max_lease: Option<Span>,
    pub(crate) adaptive: Option<Adaptation>,
}

impl Tiers {
    /// The names of the plans, in the order of the file.
    pub fn plans(&self) -> impl ExactSizeIterator<Item = &str> {
        self.plans.iter().map(|plan| &*plan.name)
    }

    /// The plan of tenants without a plan of their own.
    #[must_use]
    pub fn default_plan(&self) -> Option<&str> {
        let plan = self.plans.get(usize::from(self.default_plan?))?;
        Some(&plan.name)
    }

    /// The attribute that names the plan of a request (`plan_from`), if there is one.
    #[must_use]
    pub fn plan_attribute(&self) -> Option<&str> {
        self.plan_from.as_deref()
    }

    /// Whether plans may set the numbers of an allowance with this `per`. If requests name their plans, the
    /// allowance need not be the tenant's own.
    pub(crate) fn may_differ_by_plan(&self, per: &[String]) -> bool {
        is_by_tenant(per) || (self.plan_from.is_some() && !per.is_empty())
    }

    /// The plan of a tenant. A tenant that the config does not name has the default plan.
    #[must_use]
    pub fn plan_of_tenant(&self, tenant: &str) -> Option<&str> {
        let plan = self.plan_of(self.tenants.get(tenant))?;
        let plan = self.plans.get(usize::from(plan))?;
        Some(&plan.name)
    }

    /// The number of tenants that the config names.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// Whether there are neither plans nor tenants.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty() && self.tenants.is_empty()
    }

    /// Finds the index of a plan.
    pub(crate) fn plan(&self, name: &str) -> Option<u16> {
        let place = self.plans.iter().position(|plan| *plan.name == *name)?;
        u16::try_from(place).ok()
    }

    /// Returns the plan of a tenant. `None` stands for a tenant that the config does not name.
    pub(crate) fn plan_of(&self, tenant: Option<&Tenant>) -> Option<u16> {
        tenant.and_then(|it| it.plan).or(self.default_plan)
    }
}
