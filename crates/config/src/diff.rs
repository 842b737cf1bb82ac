//! The differences between two configs, in words.

use tollgate_rules::Difference;

use crate::config::Config;
use crate::server::{ExemptPaths, Gateway, Server, Token, UnknownDomain};

/// Returns the changes from `old` to `new`, in this order: the deployment, rules and budgets, plans,
/// tenants.
#[must_use]
pub fn diff(old: &Config, new: &Config) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut note = |about: &str, what: &str| {
        found.push(Difference {
            about: about.to_owned(),
            what: what.to_owned(),
        });
    };
    if old.namespace != new.namespace {
        let (old, new) = (&old.namespace, &new.namespace);
        let what = format!("{old} becomes {new}: after a restart, all counts start from zero");
        note("namespace", &what);
    }
    if old.subjects.hash_secret != new.subjects.hash_secret {
        let (old, new) = (&old.subjects, &new.subjects);
        let carried = |secret| new.previous_hash_secrets.contains(secret);
        let what = match old.hash_secret.as_ref().is_some_and(carried) {
            true => "changed: after a restart, counts in Redis and in a ledger continue",
            false => {
                "changed: after a restart, the old counts are not used; the server does not start if Redis or the ledger was used with another secret"
            }
        };
        note("subjects.hash_secret", what);
    }
    let restarts = [
        ("store", old.store != new.store),
        ("stores", old.stores != new.stores),
        ("server", doors(&old.server) != doors(&new.server)),
        ("telemetry", old.telemetry != new.telemetry),
        ("ledger", old.ledger != new.ledger),
        ("events", old.events != new.events),
        (
            "subjects.previous_hash_secrets",
            old.subjects.previous_hash_secrets != new.subjects.previous_hash_secrets,
        ),
        (
            "subjects.max_keys",
            old.subjects.max_keys != new.subjects.max_keys,
        ),
        (
            "subjects.max_anonymous_keys",
            old.subjects.max_anonymous_keys != new.subjects.max_anonymous_keys,
        ),
        (
            "subjects.time_header",
            old.subjects.time_header != new.subjects.time_header
                || old.subjects.max_time_skew != new.subjects.max_time_skew,
        ),
    ];
    for (part, _) in restarts.into_iter().filter(|(_, changed)| *changed) {
        note(part, "changed: takes effect after a restart");
    }
    if tokens(&old.server) != tokens(&new.server) {
        let what = "changed: other tokens open the admin door";
        note("server.admin.tokens", what);
    }
    if other_guards(&old.server, &new.server) {
        let what = match new.server.tokens.is_empty() {
            true => "removed: the data doors need no token",
            false => "changed: other tokens open the data doors",
        };
        note("server.tokens", what);
    }
    let mut subjects = old.subjects.clone();
    subjects.hash_secret.clone_from(&new.subjects.hash_secret);
    let previous = &new.subjects.previous_hash_secrets;
    subjects.previous_hash_secrets.clone_from(previous);
    subjects.max_keys = new.subjects.max_keys;
    subjects.max_anonymous_keys = new.subjects.max_anonymous_keys;
    subjects.time_header.clone_from(&new.subjects.time_header);
    subjects.max_time_skew = new.subjects.max_time_skew;
    if subjects != new.subjects {
        let what = "changed: doors may find other subjects in a request";
        note("subjects", what);
    }
    if old.headers != new.headers {
        note("headers", "changed: responses have other headers or bodies");
    }
    if old.authentication != new.authentication {
        let what = "changed: other credentials are accepted";
        note("authentication", what);
    }
    if old.routes != new.routes {
        let what = "changed: forward-auth and the gateway may find other actions and upstreams";
        note("routes", what);
    }
    if old.upstreams != new.upstreams {
        let what = "changed: the gateway passes requests to other servers, or in another way";
        note("upstreams", what);
    }
    if gateway_settings(&old.server) != gateway_settings(&new.server) {
        note(
            "server.gateway",
            "changed: other paths are exempt, or bodies have other bounds",
        );
    }
    found.extend(tollgate_rules::diff(&old.policy, &new.policy));
    found
}

/// Keeps the settings of the doors that only a restart can change. Other settings get fixed values, so
/// that they compare as equal.
fn doors(server: &Server) -> Server {
    let mut server = server.clone();
    server.tokens.clear();
    server.http.needs_token = true;
    if let Some(resp) = &mut server.resp {
        resp.listen.needs_token = true;
    }
    if let Some(admin) = &mut server.admin {
        admin.tokens.clear();
    }
    if let Some(grpc) = &mut server.grpc {
        grpc.unknown_domain = UnknownDomain::Allow;
        grpc.listen.needs_token = true;
    }
    if let Some(gateway) = &mut server.gateway {
        let log = gateway.access_log.take();
        *gateway = Gateway::new(gateway.listen.clone());
        gateway.access_log = log;
    }
    server
}

/// The settings of the gateway that a reload changes; `None` without a gateway.
fn gateway_settings(server: &Server) -> Option<(&ExemptPaths, u64, usize)> {
    let gateway = server.gateway.as_ref()?;
    let bounds = (gateway.max_body, gateway.max_inspected_body);
    Some((&gateway.exempt, bounds.0, bounds.1))
}

/// Whether other tokens open the data doors, or a door began or ceased to need one.
fn other_guards(old: &Server, new: &Server) -> bool {
    let (doors, before) = (new.doors(), old.doors());
    let mut both = doors.iter().filter_map(|(door, listen)| {
        let (_, old) = before.iter().find(|(other, _)| other == door)?;
        Some(old.needs_token != listen.needs_token)
    });
    let has_tokens = !old.tokens.is_empty() || !new.tokens.is_empty();
    has_tokens && (old.tokens != new.tokens || both.any(|differs| differs))
}

fn tokens(server: &Server) -> &[Token] {
    server.admin.as_ref().map_or(&[], |admin| &admin.tokens)
}
