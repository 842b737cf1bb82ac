//! Reads the text of an override: a stored one, or that of a request.

use std::sync::Arc;

use tollgate_core::Keyring;

use super::{Change, Override, Scope};
use crate::address;
use crate::document::{
    At, ConfigError, Duration, Factor, Flag, Percent, Place, Problems, Read, Text, Whole,
    parse_document, section,
};
use crate::mode::ModeName;
use crate::named_subject::{NamedSubject, Owner};
use crate::raw::RawNumbers;
use crate::rule::RuleState;

const EMPTY_BLOCK: &str = "write a JSON object such as {\"subject\": \"api_key=k1\", \"for\": \"1h\", \"reason\": \"abuse\"}";
const EMPTY: &str =
    "write a JSON object such as {\"tenant\": \"acme\", \"scale\": \"50%\", \"reason\": \"load\"}";
/// Longer texts are rejected unread.
const MAX_BYTES: usize = 16 * 1024;
/// Longer reasons are rejected.
const MAX_REASON: usize = 500;
/// Longer names of tenants, rules and authors are rejected.
const MAX_NAME: usize = 256;

section! {
    /// An override.
    pub(crate) struct RawOverride is "an override" {
        /// The tenant that the override is for.
        tenant: Text = "tenant",
        /// The plan that the override is for.
        plan: Text = "plan",
        /// The subject that the override is for, as `attribute=value`. Only in requests.
        subject: Text = "subject",
        /// The attribute of the subject. Only in stored overrides.
        attribute: Text = "attribute",
        /// The hash of the subject. Only in stored overrides.
        hash: Text = "hash",
        /// The fingerprint of the secret that hashed the subject. Only in stored overrides.
        hashed_by: Text = "hashedBy",
        /// The network of the subject. Only in stored overrides.
        network: Text = "network",
        /// The rule or budget that the override is for (default all).
        rule: Text = "rule",
        /// Numbers that replace those of the rule.
        numbers: RawNumbers = "numbers",
        /// The share of the limit that remains, such as 50%.
        scale: Factor = "scale",
        /// The state of the rule; only for everyone.
        state: RuleState = "state",
        /// The share of subjects that the rule applies to; only for everyone.
        rollout: Percent = "rollout",
        /// The mode of the rule: exact, leased or async.
        mode: ModeName = "mode",
        /// Whether the subject is denied before any rule. Only in stored overrides.
        block: Flag = "block",
        /// The reason.
        reason (required): Text = "reason",
        /// The author.
        author: Text = "author",
        /// How long the override is in force.
        lasts: Duration = "for",
        /// Whether the override has no end.
        forever: Flag = "forever",
        /// When the override was set.
        set_at: Whole = "setAtEpochMillis",
        /// When the override ends.
        expires_at: Whole = "expiresAtEpochMillis",
    }
}

/// Where a text comes from.
#[derive(Clone, Copy)]
pub(super) enum Origin<'k> {
    /// Tollgate has written it.
    Stored,
    /// A request for an override. The keyring hashes its subject.
    Request(&'k Keyring),
    /// A request for a block. The keyring hashes its subject.
    BlockRequest(&'k Keyring),
}

/// Reads an override. A request must not contain the fields that Tollgate sets itself.
pub(super) fn read(text: &str, now: u64, origin: Origin<'_>) -> Result<Override, ConfigError> {
    if text.len() > MAX_BYTES {
        let message = format!("an override is larger than {MAX_BYTES} bytes");
        return Err(ConfigError::unreadable("override", message, "shorten it"));
    }
    let mut problems = Problems::new(text);
    let empty = match origin {
        Origin::BlockRequest(_) => EMPTY_BLOCK,
        _ => EMPTY,
    };
    let raw = parse_document(empty, &mut problems)
        .and_then(|root| RawOverride::read(&root, &mut problems));
    let parsed = raw.and_then(|raw| {
        match origin {
            Origin::Stored => {}
            Origin::Request(_) => check_request(&raw, &mut problems),
            Origin::BlockRequest(_) => {
                check_request(&raw, &mut problems);
                check_block(&raw, &mut problems);
            }
        }
        validated(&raw, now, origin, &mut problems)
    });
    match parsed {
        Some(it) if problems.is_empty() => Ok(it),
        _ => Err(problems.into_error("override")),
    }
}

/// Reports fields that Tollgate sets itself.
fn check_request(raw: &RawOverride, problems: &mut Problems<'_>) {
    let mut check = |name, key, help| {
        if let Some(key) = key {
            problems.report(key, format!("a request cannot set `{name}`"), help);
        }
    };
    let help = "remove it: Tollgate records the name of the token";
    check("author", raw.author.key(), help);
    let help = "remove it: Tollgate records the time";
    check("setAtEpochMillis", raw.set_at.key(), help);
    let help = "write a duration instead, such as \"for\": \"1h\"";
    check("expiresAtEpochMillis", raw.expires_at.key(), help);
    let help = "write \"subject\": \"attribute=value\" instead: Tollgate hashes the value";
    check("attribute", raw.attribute.key(), help);
    check("hash", raw.hash.key(), help);
    check("hashedBy", raw.hashed_by.key(), help);
    check("network", raw.network.key(), help);
    let help = "remove it: a block has its own path, and `tollgate block` sends one";
    check("block", raw.block.key(), help);
}

/// Reports fields that a block does not have.
fn check_block(raw: &RawOverride, problems: &mut Problems<'_>) {
    let fields = [
        ("tenant", raw.tenant.key()),
        ("plan", raw.plan.key()),
        ("rule", raw.rule.key()),
        ("numbers", raw.numbers.key()),
        ("scale", raw.scale.key()),
        ("state", raw.state.key()),
        ("rollout", raw.rollout.key()),
        ("mode", raw.mode.key()),
    ];
    for (name, key) in fields {
        if let Some(key) = key {
            let help = "remove it: a block denies its subject before any rule";
            problems.report(key, format!("a block has no `{name}`"), help);
        }
    }
    if raw.subject.is_absent() {
        let help = "add the subject, such as \"subject\": \"api_key=k1\" or \"ip=10.0.0.0/8\"";
        problems.report(Place::default(), "a block needs a `subject`", help);
    }
}

fn validated(
    raw: &RawOverride,
    now: u64,
    origin: Origin<'_>,
    problems: &mut Problems<'_>,
) -> Option<Override> {
    let scope = scope(raw, origin, problems);
    let rule = raw.rule.get().map(|at| name(at, problems));
    let is_block = match origin {
        Origin::BlockRequest(_) => true,
        _ => raw.block.value().is_some_and(|it| it.0),
    };
    let change = match is_block {
        true => Some(Change::Block),
        false => change(raw, &scope, problems),
    };
    if is_block && (rule.is_some() || !matches!(scope, Scope::Subject(_))) {
        let help = "name a subject, and no rule";
        problems.report(Place::default(), "a block is for one subject", help);
    }
    if raw.reason.is_absent() {
        let help = "add a `reason` in a few words";
        problems.report(Place::default(), "an override needs a `reason`", help);
    }
    let at = raw.reason.get()?;
    let reason = at.value.0.clone();
    if reason.trim().is_empty() || reason.len() > MAX_REASON {
        let help = format!("write the reason in a few words, {MAX_REASON} bytes at most");
        problems.report(at.place, "the reason is empty or too long", help);
        return None;
    }
    let set_at = raw.set_at.value().map_or(now, |it| it.0);
    let expires_at = match (raw.expires_at.value(), raw.lasts.value()) {
        (Some(at), _) => Some(at.0),
        (None, Some(lasts)) => Some(set_at.saturating_add(lasts.0.as_millis_ceil())),
        (None, None) => None,
    };
    let is_forever = raw.forever.value().is_some_and(|it| it.0);
    match &scope {
        _ if is_forever && expires_at.is_some() => {
            let place = raw.forever.key().unwrap_or_default();
            let help = "write either a duration or `forever`";
            problems.report(place, "an override has an end or is forever", help);
        }
        Scope::Subject(_) if !is_forever && expires_at.is_none() => {
            let message = "an override for a subject needs an end";
            let help = "add a duration, such as \"for\": \"1h\", or \"forever\": true";
            problems.report(Place::default(), message, help);
        }
        _ => {}
    }
    if scope == Scope::Everyone && expires_at.is_none() {
        let message = "an override for everyone needs an end";
        let help =
            "add a duration, such as \"for\": \"1h\", or name a `tenant`, a `plan` or a `subject`";
        problems.report(Place::default(), message, help);
    }
    let author = raw.author.get().map(|at| name(at, problems).to_string());
    Some(Override {
        scope,
        rule,
        change: change?,
        reason,
        author: author.unwrap_or_default(),
        set_at,
        expires_at,
    })
}

fn name(at: &At<Text>, problems: &mut Problems<'_>) -> Arc<str> {
    if at.value.0.is_empty() || at.value.0.len() > MAX_NAME {
        let help = format!("write a name of 1 to {MAX_NAME} bytes");
        problems.report(at.place, "the name is empty or too long", help);
    }
    at.value.0.as_str().into()
}

fn scope(raw: &RawOverride, origin: Origin<'_>, problems: &mut Problems<'_>) -> Scope {
    let places = [
        raw.tenant.key(),
        raw.plan.key(),
        raw.subject.key().or(raw.attribute.key()),
    ];
    let mut places = places.into_iter().flatten().skip(1);
    if let Some(second) = places.next() {
        let help = "name one of them, or none of them for everyone";
        let message = "an override is for a tenant, a plan or a subject";
        problems.report(second, message, help);
        return Scope::Everyone;
    }
    if let Some(tenant) = raw.tenant.get() {
        return Scope::Tenant(name(tenant, problems));
    }
    if let Some(plan) = raw.plan.get() {
        return Scope::Plan(name(plan, problems));
    }
    match subject(raw, origin, problems) {
        Some(subject) => Scope::Subject(subject),
        None => Scope::Everyone,
    }
}

/// Returns the subject of a request or of a stored override; `None` if it has none, or a wrong one.
fn subject(
    raw: &RawOverride,
    origin: Origin<'_>,
    problems: &mut Problems<'_>,
) -> Option<NamedSubject> {
    if let Some(at) = raw.subject.get() {
        let (Origin::Request(keyring) | Origin::BlockRequest(keyring)) = origin else {
            let help = "write `attribute`, and `hash` or `network`";
            problems.report(at.place, "a stored override has no `subject`", help);
            return None;
        };
        let read = NamedSubject::parse(&at.value.0, keyring);
        return match read {
            Ok(subject) => Some(subject),
            Err(error) => {
                problems.report(at.place, error.message, error.help);
                None
            }
        };
    }
    let attribute = name(raw.attribute.get()?, problems);
    let owner = match (raw.hash.get(), raw.hashed_by.get(), raw.network.get()) {
        (Some(hash), Some(by), None) => {
            let digits = &hash.value.0;
            let is_hash = digits.len() == 32 && digits.bytes().all(|it| it.is_ascii_hexdigit());
            let hash = is_hash.then(|| u128::from_str_radix(digits, 16).ok());
            let keyring = name(by, problems);
            hash.flatten().map(|hash| Owner::Hash { hash, keyring })
        }
        (None, None, Some(network)) => {
            let network = address::parse_network(&network.value.0);
            network.ok().map(Owner::Network)
        }
        _ => None,
    };
    if owner.is_none() {
        let help = "write `hash` with `hashedBy`, or `network`";
        problems.report(Place::default(), "the subject cannot be read", help);
    }
    owner.map(|owner| NamedSubject { attribute, owner })
}

fn change(raw: &RawOverride, scope: &Scope, problems: &mut Problems<'_>) -> Option<Change> {
    let given = [
        raw.numbers.key(),
        raw.scale.key(),
        raw.state.key(),
        raw.rollout.key(),
        raw.mode.key(),
    ];
    let given: Vec<Place> = given.into_iter().flatten().collect();
    let [place] = given.as_slice() else {
        let place = given.get(1).copied().unwrap_or_default();
        let help = "write one of `numbers`, `scale`, `state`, `rollout` and `mode`";
        problems.report(place, "an override makes exactly one change", help);
        return None;
    };
    if let Some(state) = raw.state.value() {
        if *scope != Scope::Everyone {
            let help = "remove the tenant or plan, or write `scale` or `numbers`";
            problems.report(*place, "an override of `state` applies to everyone", help);
        }
        if *state == RuleState::Enforce && raw.rule.is_absent() {
            let message = "`enforce` needs a rule: some rules only observe on purpose";
            problems.report(*place, message, "add the `rule` to enforce");
        }
        return Some(Change::State(*state));
    }
    if let Some(share) = raw.rollout.value() {
        if *scope != Scope::Everyone {
            let help = "remove the tenant, plan or subject: a rollout chooses subjects itself";
            problems.report(*place, "an override of `rollout` applies to everyone", help);
        }
        if raw.rule.is_absent() {
            let help = "add the `rule` to roll out";
            problems.report(*place, "a rollout belongs to a rule", help);
        }
        return Some(Change::Rollout(share.0));
    }
    if let Some(mode) = raw.mode.value() {
        return Some(Change::Mode(*mode));
    }
    if let Some(scale) = raw.scale.value() {
        return Some(Change::Scale(scale.0));
    }
    let written = raw.numbers.value()?.written();
    written.check_numbers(problems);
    if raw.rule.is_absent() {
        let help = "add the `rule` or budget that the numbers belong to";
        problems.report(*place, "numbers belong to a rule", help);
    }
    if written.first_key().is_none() {
        let help = "write those that change, such as { \"burst\": 500 }";
        problems.report(*place, "there are no numbers", help);
    }
    written.numbers().map(|it| Change::Numbers(Box::new(it)))
}
