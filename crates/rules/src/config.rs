//! The config of a deployment, validated.

use std::fmt;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use tollgate_core::CarryOver;

use crate::client::{ClientHeader, SubjectHeaders};
use crate::error::{ConfigError, Problems};
use crate::events::Events;
use crate::files;
use crate::ledger::Ledger;
use crate::route::Routes;
use crate::rule::{Durability, Rule};
use crate::secrets;
use crate::server::Server;
use crate::store::Store;
use crate::telemetry::Telemetry;
use crate::tiers::{Budget, Tiers};
use crate::validate;
use crate::yaml;

/// Larger files are refused unread.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// A validated config.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Separates the keys of deployments that share a store: `default` unless given.
    pub namespace: String,
    /// The doors: where to listen.
    pub server: Server,
    /// Where state lives.
    pub store: Store,
    /// Who is who.
    pub subjects: Subjects,
    /// What responses say.
    pub headers: Headers,
    /// Which action a request is, where a door has to tell.
    pub routes: Routes,
    /// What the server tells of itself.
    pub telemetry: Telemetry,
    /// Where usage is kept for good; `None` if it is not.
    pub ledger: Option<Ledger>,
    /// Who is told when a limit is near.
    pub events: Events,
    /// The rules, in the order of the file.
    pub rules: Vec<Rule>,
    /// Plans and tenants.
    pub tiers: Tiers,
    pub(crate) budgets: Vec<Budget>,
    /// Where more tenants are, as written.
    pub(crate) tenant_files: Vec<String>,
    /// The files that they are, and the directories that those are in.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) watched: Vec<PathBuf>,
    /// Names this very text and that of its tenant files: twelve hexadecimal digits of a BLAKE3 hash.
    pub version: String,
}

impl Config {
    /// The files that tenants were read from.
    #[must_use]
    pub fn tenant_files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The directories that the config names for them: one that comes or goes there changes the config.
    #[must_use]
    pub fn tenant_directories(&self) -> &[PathBuf] {
        &self.watched
    }

    /// Puts the ledger that is open in the place of the one that the config names, or names not: a reload
    /// neither opens nor closes one. Quotas that say nothing of `durability` are kept in it.
    pub fn keep_in(&mut self, ledger: Option<Ledger>) {
        if self.ledger.is_none() && ledger.is_some() {
            for rule in self.rules.iter_mut().filter(|it| it.durable_by_default) {
                rule.durability = Durability::Async;
                // As all that is kept there: other words are refused beside a ledger.
                rule.carry_over = CarryOver::Keep;
            }
        }
        self.ledger = ledger;
    }
}

/// Who is who.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subjects {
    /// The secret that subjects are hashed with.
    pub hash_secret: Option<Secret>,
    /// Networks whose word on clients is believed: see [`Subjects::is_trusted`].
    pub trusted_proxies: Vec<IpNet>,
    /// The header in which they name the client's address; `None` if it is the first that is there.
    pub client_header: Option<ClientHeader>,
    /// Where HTTP doors find who asks.
    pub headers: SubjectHeaders,
    /// Networks whose clients are inside: see [`Subjects::is_internal`].
    pub internal: Vec<IpNet>,
    /// The header that marks test traffic, believed from trusted proxies, in small letters.
    pub test_header: Option<String>,
    /// How many leading bits of an IPv6 address make one subject: 64 unless given.
    pub ipv6_prefix: u8,
    /// How many subjects are kept at most: 10,000,000 unless given.
    pub max_keys: usize,
}

/// What responses say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Headers {
    /// Which families of rate limit headers to send: all unless given.
    pub families: Families,
    /// Whether refusals have a problem+json body.
    pub problem_json: bool,
}

/// Families of rate limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// `RateLimit` and `RateLimit-Policy`, structured fields.
    pub ietf: bool,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    pub ratelimit: bool,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`.
    pub x_ratelimit: bool,
}

/// Bytes that are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// These bytes, not to be printed.
    #[must_use]
    pub fn new(secret: String) -> Secret {
        Secret(secret)
    }

    /// The bytes, to hash or to log in with.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Reads the config at `path`, and the tenant files it names; `${VAR}` comes from the environment of
/// the process.
///
/// # Errors
/// If a file cannot be read, or is not valid: then with everything that is wrong with it.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let text = read_text(path)?;
    let env = |variable: &str| std::env::var(variable).ok();
    let mut config = read(&path.display().to_string(), &text, &env, true)?;
    files::add_tenants(&mut config, &text, path.parent().unwrap_or(Path::new("")))?;
    Ok(config)
}

/// What else the config at `path` is read from, as it is now: the tenant files that it names, and the
/// directories that hold them. Also of a config that is refused, as far as it can be read; nothing if
/// it cannot.
#[must_use]
pub fn tenant_paths(path: &Path) -> Vec<PathBuf> {
    let Ok(text) = read_text(path) else {
        return Vec::new();
    };
    let env = |variable: &str| std::env::var(variable).ok();
    let mut problems = Problems::new(&text);
    let root = yaml::parse(&mut problems);
    let given = root.map(|root| validate::tenant_files_of(&root, &env, &mut problems));
    let folder = path.parent().unwrap_or(Path::new(""));
    files::all_paths(&given.unwrap_or_default(), folder)
}

/// The text of the config at `path`, whatever it says.
///
/// # Errors
/// If the file cannot be read, is too large, or is not text.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    files::read(path, "config", MAX_BYTES)
}

/// Reads the config `text`. `name` is what errors call it; `env` answers for `${VAR}`.
///
/// # Errors
/// If it is not a valid config: then with everything that is wrong. A text has no tenant files.
///
/// ```
/// let error = tollgate_rules::parse("rules.yaml", "version: 2\nrules: []\n", &|_| None).unwrap_err();
/// assert!(error.to_string().starts_with("rules.yaml:1:10: "));
/// ```
pub fn parse(
    name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, ConfigError> {
    read(name, text, env, false)
}

fn read(
    name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    files: bool,
) -> Result<Config, ConfigError> {
    if text.len() as u64 > MAX_BYTES {
        return Err(files::too_large(name, "config", MAX_BYTES));
    }
    let mut problems = Problems::new(text);
    let config = match yaml::parse(&mut problems) {
        Some(root) => {
            secrets::hide(&root, &mut problems);
            validate::config(&root, env, files, &mut problems)
        }
        None => {
            secrets::hide_in_text(&mut problems);
            None
        }
    };
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(problems.into_error(name)),
    }
}
