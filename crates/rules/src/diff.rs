//! What changes from one config to another, and for whom, in words.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tollgate_core::{Limit, Outcome, Rate};

use crate::config::Config;
use crate::layers::{Allowance, Layers, Resolved, Tables};
use crate::limits::{Counting, Numbers};
use crate::rule::{Condition, Cost, Rule, RuleState};
use crate::server::{Server, Token, UnknownDomain};
use crate::tiers::Tenant;

/// How many tenants are named where many change alike.
const NAMED: usize = 5;

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What it is about: a rule, a plan, tenants, a part of the config.
    pub about: String,
    /// What changes, in words.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.what)
    }
}

/// What changes from `old` to `new`, in the order of what is looked at first: the deployment, rules and
/// budgets, plans, tenants.
///
/// ```
/// # use tollgate_rules::{diff, parse};
/// # let rules = |rate: &str| parse("rules.yaml", &format!("
/// # version: 1
/// # rules: [{{ id: api, per: [tenant], algorithm: gcra, rate: {rate} }}]
/// # "), &|_| None);
/// let differences = diff(&rules("10/s")?, &rules("20/s")?);
/// assert_eq!(
///     differences[0].to_string(),
///     "rule api: rate 10/s becomes 20/s: more for who has no plan",
/// );
/// # Ok::<(), tollgate_rules::ConfigError>(())
/// ```
#[must_use]
pub fn diff(old: &Config, new: &Config) -> Vec<Difference> {
    let mut found = Found(Vec::new());
    deployment(old, new, &mut found);
    let (before, after) = (Numbered::new(old), Numbered::new(new));
    rules(&before, &after, &mut found);
    plans(&before, &after, &mut found);
    tenants(&before, &after, &mut found);
    found.0
}

struct Found(Vec<Difference>);

impl Found {
    fn note(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.0.push(Difference {
            about: about.into(),
            what: what.into(),
        });
    }
}

/// What the whole deployment is about.
fn deployment(old: &Config, new: &Config, found: &mut Found) {
    if old.namespace != new.namespace {
        let (old, new) = (&old.namespace, &new.namespace);
        let what = format!("{old} becomes {new}: after a restart, every state starts afresh");
        found.note("namespace", what);
    }
    if old.subjects.hash_secret != new.subjects.hash_secret {
        let what = "another one: after a restart, every state starts afresh";
        found.note("subjects.hash_secret", what);
    }
    let restarts = [
        ("store", old.store != new.store),
        ("server", doors(&old.server) != doors(&new.server)),
        ("telemetry", old.telemetry != new.telemetry),
        (
            "subjects.max_keys",
            old.subjects.max_keys != new.subjects.max_keys,
        ),
    ];
    for (part, _) in restarts.into_iter().filter(|(_, changed)| *changed) {
        found.note(part, "changed: it takes a restart");
    }
    if admitted(&old.server) != admitted(&new.server) {
        found.note(
            "server.admin.tokens",
            "changed: others may enter the admin door",
        );
    }
    let mut subjects = old.subjects.clone();
    subjects.hash_secret.clone_from(&new.subjects.hash_secret);
    subjects.max_keys = new.subjects.max_keys;
    if subjects != new.subjects {
        found.note(
            "subjects",
            "changed: who a request is from may be told otherwise",
        );
    }
    if old.headers != new.headers {
        found.note("headers", "changed: answers say other things");
    }
    if format!("{:?}", old.routes) != format!("{:?}", new.routes) {
        found.note(
            "routes",
            "changed: requests of forward-auth may be other actions",
        );
    }
}

/// What of the doors takes a restart.
fn doors(server: &Server) -> Server {
    let mut server = server.clone();
    if let Some(admin) = &mut server.admin {
        admin.tokens.clear();
    }
    if let Some(grpc) = &mut server.grpc {
        grpc.unknown_domain = UnknownDomain::Allow;
    }
    server
}

fn admitted(server: &Server) -> &[Token] {
    server.admin.as_ref().map_or(&[], |admin| &admin.tokens)
}

fn rules(before: &Numbered<'_>, after: &Numbered<'_>, found: &mut Found) {
    let (old, new) = (before.config, after.config);
    let both = (before, after);
    let find = |rules: &[Rule], id: &str| rules.iter().position(|rule| *rule.id == *id);
    for rule in &old.rules {
        if find(&new.rules, &rule.id).is_none() {
            let whom = whom(&rule.conditions);
            let what = format!("is gone: {whom} are no longer limited by it");
            found.note(format!("rule {}", rule.id), what);
        }
    }
    for rule in &new.rules {
        match find(&old.rules, &rule.id) {
            Some(place) => changed(&old.rules[place], rule, both, found),
            None => found.note(format!("rule {}", rule.id), described(rule)),
        }
    }
    for budget in &old.budgets {
        if !new.budgets.iter().any(|it| it.name == budget.name) {
            found.note(format!("budget {}", budget.name), "is gone");
        }
    }
    for budget in &new.budgets {
        let about = format!("budget {}", budget.name);
        match old.budgets.iter().find(|it| it.name == budget.name) {
            None => {
                let what = format!(
                    "is new: {}, {}",
                    counted(&budget.counting),
                    per(&budget.per)
                );
                found.note(about, what);
            }
            Some(before) => {
                if sorted(&before.per) != sorted(&budget.per) {
                    let (old, new) = (per(&before.per), per(&budget.per));
                    found.note(
                        &about,
                        format!("{old} becomes {new}: its state starts afresh"),
                    );
                }
                if before.placement != budget.placement {
                    found.note(
                        &about,
                        "placement changes: its state starts afresh in a cluster",
                    );
                }
                let name = &budget.name;
                counting(
                    &about,
                    (name, &before.counting, &budget.counting),
                    both,
                    found,
                );
            }
        }
    }
}

/// A new rule, in words.
fn described(rule: &Rule) -> String {
    let allowance = match rule.budget() {
        Some(budget) => format!("draws on the budget {budget}"),
        None => format!("{}, {}", counted(&rule.counting), per(&rule.per)),
    };
    let state = match (rule.candidate_of(), rule.state) {
        (Some(current), _) => format!("as a candidate of {current}"),
        (None, state) => state_words(state).to_owned(),
    };
    let whom = whom(&rule.conditions);
    format!("is new: {allowance}, for {whom}; {state}")
}

fn state_words(state: RuleState) -> &'static str {
    match state {
        RuleState::Enforce => "it refuses",
        RuleState::Shadow => "it only observes",
        RuleState::Disabled => "it is off",
    }
}

/// What changes of a rule that is in both.
fn changed(old: &Rule, new: &Rule, both: (&Numbered<'_>, &Numbered<'_>), found: &mut Found) {
    let about = format!("rule {}", new.id);
    if old.state != new.state {
        let words = state_words(new.state);
        let (old, new) = (old.state.name(), new.state.name());
        found.note(&about, format!("{old} becomes {new}: {words}"));
    }
    if old.rollout != new.rollout {
        let share = |rollout: u16| crate::overrides::percent(rollout.into());
        let whom = match old.rollout < new.rollout {
            true => "those it was on for stay, and others join them",
            false => "some of those it was on for leave, and nobody joins",
        };
        let (old, new) = (share(old.rollout), share(new.rollout));
        found.note(&about, format!("rollout {old} becomes {new}: {whom}"));
    }
    if old.candidate_of != new.candidate_of {
        let what = match (&old.candidate_of, &new.candidate_of) {
            (Some(_), None) => "is no candidate any more, and refuses".to_owned(),
            (_, Some(current)) => format!("is a candidate of {current} now"),
            (None, None) => String::new(),
        };
        found.note(&about, what);
    }
    let (before, after) = (whom(&old.conditions), whom(&new.conditions));
    if before != after {
        found.note(&about, format!("is for {after}, and was for {before}"));
    }
    let text = |rule: &Rule| rule.when.as_ref().map(|when| when.text().to_owned());
    if text(old) != text(new) {
        let said = |text: Option<String>| text.unwrap_or_else(|| "always".to_owned());
        let (old, new) = (said(text(old)), said(text(new)));
        found.note(&about, format!("when {old} becomes {new}"));
    }
    if old.budget != new.budget {
        let from = |rule: &Rule| match rule.budget() {
            Some(budget) => format!("the budget {budget}"),
            None => "an allowance of its own".to_owned(),
        };
        let (old, new) = (from(old), from(new));
        found.note(&about, format!("draws on {new}, and drew on {old}"));
    } else if new.budget.is_none() {
        if sorted(&old.per) != sorted(&new.per) {
            let (old, new) = (per(&old.per), per(&new.per));
            found.note(
                &about,
                format!("{old} becomes {new}: its state starts afresh"),
            );
        }
        let counted = (&new.id, &old.counting, &new.counting);
        counting(&about, counted, both, found);
    }
    let (before, after) = (priced(&old.cost), priced(&new.cost));
    if before != after {
        found.note(&about, format!("cost {before} becomes {after}"));
    }
    settings(&about, old, new, found);
}

/// What a rule does besides counting.
fn settings(about: &str, old: &Rule, new: &Rule, found: &mut Found) {
    let policy = |rule: &Rule| match rule.on_store_failure {
        Some(policy) => policy.name(),
        None => "none",
    };
    let waits = |rule: &Rule| match &rule.backoff {
        Some(Limit::Backoff(backoff)) => {
            let it = backoff.schedule();
            let (after, base, factor, max) = (it.after, it.base, it.factor, it.max);
            format!(
                "after {after} of {base} times {factor} up to {max}, forgotten after {}, penalty {}",
                it.forget, it.penalty
            )
        }
        _ => "none".to_owned(),
    };
    let said = |rate: Option<Rate>| rate.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    let source = |rule: &Rule| match &rule.limit_from {
        Some(from) => format!("attributes.{} up to {}", from.attribute, from.ceiling),
        None => "nothing".to_owned(),
    };
    let both = [
        (
            "missing",
            old.missing.name().to_owned(),
            new.missing.name().to_owned(),
        ),
        (
            "charge_denied",
            yes(old.charge_denied).to_owned(),
            yes(new.charge_denied).to_owned(),
        ),
        ("backoff", waits(old), waits(new)),
        (
            "carry_over",
            old.carry_over.name().to_owned(),
            new.carry_over.name().to_owned(),
        ),
        (
            "on_store_failure",
            policy(old).to_owned(),
            policy(new).to_owned(),
        ),
        (
            "emergency_limit",
            said(old.emergency_limit),
            said(new.emergency_limit),
        ),
        ("limit_from", source(old), source(new)),
        (
            "placement",
            format!("{:?}", old.placement),
            format!("{:?}", new.placement),
        ),
    ];
    for (name, before, after) in both {
        if before != after {
            found.note(about, format!("{name} {before} becomes {after}"));
        }
    }
    if old.message != new.message {
        found.note(about, "tells refused clients something else");
    }
}

/// What changes of how something is counted.
fn counting(
    about: &str,
    (name, old, new): (&Arc<str>, &Counting, &Counting),
    (before, after): (&Numbered<'_>, &Numbered<'_>),
    found: &mut Found,
) {
    if old.algorithm != new.algorithm {
        let (was, is) = (counted(old), counted(new));
        found.note(
            about,
            format!("{was} becomes {is}: its state starts afresh"),
        );
        return;
    }
    let changes = numbers(&old.numbers, &new.numbers);
    if !changes.is_empty() {
        let than = compared(&old.limit, &new.limit);
        let mut whom = "for who has no plan".to_owned();
        let plans = after.config.tiers.plans();
        let concerned = |plan: &&str| {
            let of = |it: &Numbered<'_>| it.of_plan(plan, name).map(|it| it.limit.clone());
            of(before) != of(after)
        };
        let concerned: Vec<&str> = plans.filter(concerned).collect();
        if !concerned.is_empty() {
            let word = if concerned.len() == 1 {
                "plan"
            } else {
                "plans"
            };
            whom += &format!(", and on the {word} {}", concerned.join(", "));
        }
        found.note(about, format!("{}: {than} {whom}", changes.join(", ")));
    }
}

/// Numbers that differ, in words.
fn numbers(old: &Numbers, new: &Numbers) -> Vec<String> {
    let old: BTreeMap<&str, String> = old.given().collect();
    let new: BTreeMap<&str, String> = new.given().collect();
    let mut names: Vec<&str> = old.keys().chain(new.keys()).copied().collect();
    names.sort_unstable();
    names.dedup();
    let differing = names.into_iter().filter_map(|name| {
        let said = |numbers: &BTreeMap<&str, String>| match numbers.get(name) {
            Some(value) => value.clone(),
            None => "unsaid".to_owned(),
        };
        let (old, new) = (said(&old), said(&new));
        (old != new).then(|| format!("{name} {old} becomes {new}"))
    });
    differing.collect()
}

/// Whether a limit allows more or less than another.
fn compared(old: &Limit, new: &Limit) -> &'static str {
    let speed = |limit: &Limit| {
        let window = u128::from(limit.window().as_micros().max(1));
        (u128::from(limit.capacity()), window)
    };
    if old.capacity() == new.capacity() && old.window() == new.window() {
        return "the same in effect";
    }
    let unlimited = |limit: &Limit| limit.capacity() == Outcome::UNLIMITED;
    let ((old_most, old_window), (new_most, new_window)) = (speed(old), speed(new));
    let at_once = old_most.cmp(&new_most);
    let in_time = match (unlimited(old), unlimited(new)) {
        (false, false) => (old_most * new_window).cmp(&(new_most * old_window)),
        (old, new) => old.cmp(&new),
    };
    match (at_once, in_time) {
        (std::cmp::Ordering::Greater, std::cmp::Ordering::Less) => {
            "less at once and more in the long run"
        }
        (std::cmp::Ordering::Less, std::cmp::Ordering::Greater) => {
            "more at once and less in the long run"
        }
        (std::cmp::Ordering::Greater, _) | (_, std::cmp::Ordering::Greater) => "less",
        _ => "more",
    }
}

/// A config with its numbers worked out.
struct Numbered<'c> {
    config: &'c Config,
    tables: Tables,
}

impl<'c> Numbered<'c> {
    fn new(config: &'c Config) -> Numbered<'c> {
        let layers = Layers::new(config, &[]);
        Numbered {
            config,
            tables: Tables::new(config, &layers),
        }
    }

    fn allowance(&self, name: &str) -> Option<u32> {
        let mut all = (0..).zip(&self.tables.allowances);
        all.find_map(|(place, it): (u32, &Allowance)| (*it.name == *name).then_some(place))
    }

    /// The numbers of what both have, for a tenant.
    fn of(&self, tenant: &str, name: &str) -> Option<&Resolved> {
        let tier = self.tables.tier(Some(tenant));
        Some(self.tables.of(tier, self.allowance(name)?))
    }

    /// The numbers of who is on a plan.
    fn of_plan(&self, plan: &str, name: &str) -> Option<&Resolved> {
        let plan = self.config.tiers.plan(plan)?;
        Some(self.tables.of_plan(plan, self.allowance(name)?))
    }

    fn plan_of(&self, tenant: Option<&Tenant>) -> &str {
        let plan = self.config.tiers.plan_of(tenant);
        let plan = plan.and_then(|it| self.config.tiers.plans.get(usize::from(it)));
        plan.map_or("none", |plan| &plan.name)
    }
}

fn plans(old: &Numbered<'_>, new: &Numbered<'_>, found: &mut Found) {
    let (before, after) = (&old.config.tiers, &new.config.tiers);
    if before.default_plan() != after.default_plan() {
        let said = |plan: Option<&str>| plan.unwrap_or("none").to_owned();
        let (old, new) = (said(before.default_plan()), said(after.default_plan()));
        let what = format!("{old} becomes {new}: for tenants without a plan");
        found.note("default_plan", what);
    }
    for plan in &before.plans {
        if after.plan(&plan.name).is_none() {
            found.note(format!("plan {}", plan.name), "is gone");
        }
    }
    for plan in &after.plans {
        let about = format!("plan {}", plan.name);
        let known = before.plans.iter().find(|it| it.name == plan.name);
        let Some(known) = known else {
            found.note(about, "is new");
            continue;
        };
        let place = after.plan(&plan.name);
        let on_it = after.tenants.values();
        let on_it = on_it.filter(|tenant| after.plan_of(Some(tenant)) == place);
        let whom = match on_it.count() {
            0 => "nobody is named to be on it".to_owned(),
            1 => "1 tenant is on it".to_owned(),
            many => format!("{many} tenants are on it"),
        };
        let mut names: Vec<&Arc<str>> = known.patches.iter().map(|(name, _)| name).collect();
        names.extend(plan.patches.iter().map(|(name, _)| name));
        names.sort_unstable();
        names.dedup();
        for name in names {
            let of = |patches: &[(Arc<str>, Numbers)]| {
                let own = patches.iter().find(|(known, _)| known == name);
                own.map_or_else(Numbers::default, |(_, numbers)| *numbers)
            };
            let changes = numbers(&of(&known.patches), &of(&plan.patches));
            if !changes.is_empty() {
                let what = format!("{name}: {}; {whom}", changes.join(", "));
                found.note(&about, what);
            }
        }
    }
}

fn tenants(old: &Numbered<'_>, new: &Numbered<'_>, found: &mut Found) {
    let (before, after) = (&old.config.tiers.tenants, &new.config.tiers.tenants);
    // What happens, and to whom: many tenants often change alike.
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut note = |what: String, name| groups.entry(what).or_default().push(name);
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        note("no longer named".to_owned(), &**name);
    }
    for (name, tenant) in after.iter() {
        let Some(known) = before.get(name) else {
            let plan = new.plan_of(Some(tenant));
            note(format!("newly named, on plan {plan}"), &**name);
            continue;
        };
        let (was, is) = (old.plan_of(Some(known)), new.plan_of(Some(tenant)));
        if was != is {
            note(format!("from plan {was} to plan {is}"), &**name);
        }
        let mut own: Vec<&Arc<str>> = known.patches.iter().map(|(name, _)| name).collect();
        own.extend(tenant.patches.iter().map(|(name, _)| name));
        own.sort_unstable();
        own.dedup();
        for allowance in own {
            let limits = (old.of(name, allowance), new.of(name, allowance));
            if let (Some(was), Some(is)) = limits
                && was.limit != is.limit
            {
                let than = compared(&was.limit, &is.limit);
                let (was, is) = (amount(&was.limit), amount(&is.limit));
                note(format!("{allowance}: {was} becomes {is}: {than}"), &**name);
            }
        }
    }
    for (what, mut names) in groups {
        names.sort_unstable();
        let about = match names.as_slice() {
            [one] => format!("tenant {one}"),
            few if few.len() <= NAMED => format!("tenants {}", few.join(", ")),
            many => format!(
                "tenants {} and {} more",
                many[..NAMED].join(", "),
                many.len() - NAMED
            ),
        };
        found.note(about, what);
    }
}

fn amount(limit: &Limit) -> String {
    match limit.capacity() {
        Outcome::UNLIMITED => "unlimited".to_owned(),
        most => format!("{most} in {}", limit.window()),
    }
}

fn counted(counting: &Counting) -> String {
    let given = counting.numbers.given();
    let given: Vec<String> = given
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    format!("{} of {}", counting.algorithm.name(), given.join(", "))
}

fn sorted(per: &[String]) -> Vec<&String> {
    let mut sorted: Vec<&String> = per.iter().collect();
    sorted.sort_unstable();
    sorted
}

fn per(per: &[String]) -> String {
    match per {
        [] => "one allowance for all".to_owned(),
        per => format!("per {}", per.join(" + ")),
    }
}

fn priced(cost: &Cost) -> String {
    match cost {
        Cost::Fixed(cost) => cost.to_string(),
        Cost::Expr(expr) => expr.text().to_owned(),
        Cost::Table(table) => {
            let rows = table.rows.iter();
            let rows =
                rows.map(|(conditions, it)| format!("{} for {}", priced(it), whom(conditions)));
            let otherwise = format!("{} otherwise", priced(&table.otherwise));
            let rows: Vec<String> = rows.chain([otherwise]).collect();
            rows.join(", ")
        }
    }
}

/// Which requests conditions ask for.
fn whom(conditions: &[Condition]) -> String {
    if conditions.is_empty() {
        return "all requests".to_owned();
    }
    let conditions = conditions.iter().map(|condition| {
        let accepted: Vec<String> = condition.accepted.iter().map(ToString::to_string).collect();
        format!("{} {}", condition.attribute, accepted.join(" or "))
    });
    let conditions: Vec<String> = conditions.collect();
    format!("requests with {}", conditions.join(", "))
}
