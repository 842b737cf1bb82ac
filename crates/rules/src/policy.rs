//! A validated policy: rules, the budgets that they draw on, plans and tenants.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollgate_core::CarryOver;

use crate::document::{ConfigError, Named, Node, Place, Problems, Read, parse_document};
use crate::raw::{RawPolicy, RawTenant};
use crate::rule::{Durability, Rule};
use crate::tiers::{Budget, Tenant, Tiers};
use crate::validate::Outside;
use crate::validate::tiers::{Allowances, tenants};

/// How to start an empty file.
pub const EMPTY_HELP: &str = "start with `version: 1` and a list of `rules`";

/// The limits of a deployment: rules, the budgets that they draw on, plans and tenants.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// The rules, in the order of the file.
    pub rules: Vec<Rule>,
    /// Plans and tenants.
    pub tiers: Tiers,
    /// Identifies the text or the rules that the policy was made from: twelve hexadecimal digits of a
    /// BLAKE3 hash.
    pub version: String,
    pub(crate) budgets: Vec<Budget>,
}

impl Policy {
    /// Reads a policy from YAML. Only the fields of a config that are about limits are accepted. There
    /// is no ledger. `name` is the name of the text in errors.
    ///
    /// # Errors
    /// If the text is not a valid policy: everything that is wrong with it.
    ///
    /// ```
    /// use tollgate_rules::Policy;
    ///
    /// let error = Policy::parse("rules.yaml", "version: 2\nrules: []\n").unwrap_err();
    /// assert!(error.to_string().starts_with("rules.yaml:1:10: "));
    /// ```
    pub fn parse(name: &str, text: &str) -> Result<Policy, ConfigError> {
        let mut problems = Problems::new(text);
        let policy = parse_document(EMPTY_HELP, &mut problems).and_then(|root| {
            let raw = RawPolicy::read(&root, &mut problems)?;
            let start = Place::new(root.place.start, root.place.start);
            Some(raw.validate(start, Outside::default(), &mut problems))
        });
        match policy {
            Some(policy) if problems.is_empty() => Ok(policy),
            _ => Err(problems.into_error(name)),
        }
    }

    /// Returns a policy of these rules, without budgets, plans and tenants. The rules come from a
    /// [`RuleBuilder`](crate::RuleBuilder).
    ///
    /// # Errors
    /// If two rules have the same id. Also if a rule comes from a file and draws on a budget or is a
    /// candidate: such a rule needs the budgets and the rules of its file.
    pub fn from_rules(rules: impl IntoIterator<Item = Rule>) -> Result<Policy, ConfigError> {
        let rules: Vec<Rule> = rules.into_iter().collect();
        let mut ids = HashSet::new();
        if let Some(twice) = rules.iter().find(|rule| !ids.insert(rule.id())) {
            let message = format!("two rules have the id `{}`", twice.id());
            let help = "give each rule an id of its own";
            return Err(ConfigError::unreadable("rules", message, help));
        }
        let needs_file = |rule: &&Rule| rule.budget.is_some() || rule.candidate_of.is_some();
        if let Some(rule) = rules.iter().find(needs_file) {
            let message = format!("the rule `{}` needs the rest of its file", rule.id());
            let help = "use the whole policy: the rule draws on a budget, or is a candidate";
            return Err(ConfigError::unreadable("rules", message, help));
        }
        let hash = blake3::hash(format!("{rules:?}").as_bytes()).to_hex();
        Ok(Policy {
            rules,
            tiers: Tiers::default(),
            version: hash[..12].to_owned(),
            budgets: Vec::new(),
        })
    }

    /// Turns on a ledger that the text did not name. From now on, quotas without a `durability` are
    /// recorded in the ledger.
    pub fn record_in_ledger(&mut self) {
        for rule in self.rules.iter_mut().filter(|it| it.durable_by_default) {
            rule.durability = Durability::Async;
            // With a ledger, validation rejects any other `carry_over`.
            rule.carry_over = CarryOver::Keep;
        }
    }
}

/// Adds the tenants of further files to those of a policy.
pub struct TenantReader<'p> {
    tiers: &'p Tiers,
    allowances: Allowances<'p>,
    /// All tenants so far.
    tenants: HashMap<Box<str>, Tenant>,
    /// The file of each tenant that does not come from the config itself.
    files: HashMap<Box<str>, Arc<str>>,
}

impl std::fmt::Debug for TenantReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantReader").finish_non_exhaustive()
    }
}

impl<'p> TenantReader<'p> {
    /// Starts with the tenants of `policy`.
    #[must_use]
    pub fn new(policy: &'p Policy) -> TenantReader<'p> {
        TenantReader {
            tiers: &policy.tiers,
            allowances: Allowances::new(&policy.rules, &policy.budgets),
            tenants: HashMap::clone(&policy.tiers.tenants),
            files: HashMap::new(),
        }
    }

    /// Adds the tenants of `root`, read from `file`. `root` maps names to tenants, as `tenants` of a
    /// config does. If problems were reported, nothing is added.
    pub fn add(&mut self, file: &str, root: &Node, problems: &mut Problems<'_>) {
        let Some(named) = Named::<RawTenant>::read(root, problems) else {
            return;
        };
        let mut added = HashMap::new();
        tenants(&named, self.tiers, &self.allowances, &mut added, problems);
        for (tenant, _) in &named.0 {
            let name = tenant.value.as_str();
            if self.tenants.contains_key(name) {
                let first = self.files.get(name).map_or("the config", |file| file);
                let message = format!("the tenant `{name}` is given twice");
                let help = format!("it is also in {first}: keep one of the two");
                problems.report(tenant.place, message, help);
            }
        }
        if problems.is_empty() {
            let file: Arc<str> = file.into();
            let names = added.keys().map(|name| (name.clone(), Arc::clone(&file)));
            self.files.extend(names);
            self.tenants.extend(added);
        }
    }

    /// Returns the plans and all tenants, including the added ones.
    #[must_use]
    pub fn finish(self) -> Tiers {
        Tiers {
            tenants: Arc::new(self.tenants),
            ..self.tiers.clone()
        }
    }
}
