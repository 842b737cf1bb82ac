//! The config of a deployment: its sections, read and validated.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_core::Keyring;
use tollgate_rules::document::{
    Field, List, Named, Node, Place, Problems, Read, Short, Text, parse_document, section,
};
use tollgate_rules::{
    CompileOptions, ConfigError, EMPTY_HELP, ID_HELP, Outside, Override, Policy, Problem,
    RawPolicy, Rule, RuleSet, RuleState, RuleStore, Warning, is_id,
};

use crate::authentication::{self, Authentication, RawAuthentication};
use crate::events::{self, Events, RawEvents};
use crate::fields::{Env, expand};
use crate::foreign;
use crate::headers::{self, Headers, RawHeaders};
use crate::ledger::{self, Ledger, RawLedger};
use crate::route::{self, RawRoute, Routes};
use crate::secrets;
use crate::server::{self, RawServer, Server};
use crate::store::{
    self, ClockSource, NO_SECRET, NO_SECRET_FOR_DENIALS, NO_SECRET_FOR_LEDGER, NamedStore,
    RawSharedStore, RawStore, SECRET_HELP, Store,
};
use crate::subjects::{self, RawSubjects, Subjects};
use crate::telemetry::{self, RawTelemetry, Telemetry};
use crate::tenant_files;
use crate::upstream::{self, RawUpstream, Upstreams};

pub(crate) const NO_UPSTREAM: &str = "the gateway has no upstream to pass requests to";
pub(crate) const NO_UPSTREAM_HELP: &str =
    "add one, such as `upstreams: { api: { servers: [\"http://127.0.0.1:9000\"] } }`";

/// Larger files are rejected unread.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// A validated config.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Separates the keys of deployments that share a store (default `default`).
    pub namespace: String,
    /// The doors: which protocols are served, and on which addresses.
    pub server: Server,
    /// Where state is kept.
    pub store: Store,
    /// Further stores, which rules name.
    pub stores: Vec<NamedStore>,
    /// How subjects are hashed, and where doors find them.
    pub subjects: Subjects,
    /// The headers and bodies of responses.
    pub headers: Headers,
    /// The routes: they give a request its action at doors that see only method, host and path.
    pub routes: Routes,
    /// How callers of the gateway and of forward-auth prove who they are.
    pub authentication: Authentication,
    /// The servers that the gateway passes requests to.
    pub upstreams: Upstreams,
    /// Traces and logs.
    pub telemetry: Telemetry,
    /// The ledger that usage is recorded in, if there is one.
    pub ledger: Option<Ledger>,
    /// Warnings that a limit is near.
    pub events: Events,
    /// The limits: rules, budgets, plans and tenants. The policy's `version` identifies the text of the
    /// config and of its tenant files.
    pub policy: Policy,
    /// The paths of tenant files, as written.
    pub(crate) tenant_files: Vec<String>,
    /// The other files that were read, and the directories that the config names for tenant files.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) watched: Vec<PathBuf>,
}

section! {
    /// A Tollgate config.
    pub(crate) struct RawConfig is "a config" {
        /// Separates the keys of deployments that share a store. `${VAR}` reads the environment.
        namespace: Text = "namespace",
        /// Where to listen.
        server: RawServer = "server",
        /// Where state is kept: memory, or a Redis that instances share.
        store: RawStore = "store",
        /// Further stores, by name. A rule with store NAME keeps its state there.
        stores: Named<RawSharedStore> = "stores",
        /// How subjects are hashed, and where doors find them.
        subjects: RawSubjects = "subjects",
        /// The headers and bodies of responses.
        headers: RawHeaders = "headers",
        /// The routes of forward-auth and of the gateway. The first route that matches a request sets the request's action, and its upstream.
        routes: List<RawRoute> = "routes",
        /// How callers of the gateway and of forward-auth prove who they are.
        authentication: RawAuthentication = "authentication",
        /// The servers that the gateway passes requests to, by name.
        upstreams: Named<RawUpstream> = "upstreams",
        /// Traces and logs.
        telemetry: RawTelemetry = "telemetry",
        /// The ledger that usage is recorded in.
        ledger: RawLedger = "ledger",
        /// Warnings that a limit is near.
        events: RawEvents = "events",
        /// Files with more tenants (YAML, JSON or CSV), or directories of such files. Paths are relative to this file.
        tenant_files: List<Text> = "tenant_files",
        ..policy: RawPolicy
    }
}

impl Config {
    /// Returns a config of these rules, with defaults for all other settings: the default HTTP door,
    /// state in memory, no ledger. The fields can be changed afterwards.
    ///
    /// # Errors
    /// See [`Policy::from_rules`].
    pub fn from_rules(rules: impl IntoIterator<Item = Rule>) -> Result<Config, ConfigError> {
        let policy = Policy::from_rules(rules)?;
        let defaults = parse("rules", "{ version: 1, rules: [] }", &|_| None)?;
        Ok(Config { policy, ..defaults })
    }

    /// The other files that the config was read from: tenants, keys of tokens, API keys.
    #[must_use]
    pub fn other_files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The directories that the config names for tenant files. The config changes if a file appears or
    /// disappears in one of them.
    #[must_use]
    pub fn tenant_directories(&self) -> &[PathBuf] {
        &self.watched
    }

    /// Prepares the rules for requests, with these overrides in force. If two overrides have the same
    /// name, the later one wins. `keyring` hashes the subjects.
    #[must_use]
    pub fn compile(&self, keyring: Keyring, overrides: &[Arc<Override>]) -> RuleSet {
        let options = CompileOptions {
            keyring,
            ipv6_prefix: self.subjects.ipv6_prefix,
            cluster_tags: self.redis_stores().next().is_some(),
            ledger: self.ledger.is_some(),
            is_local: self.is_local(),
        };
        RuleSet::compile_with(&self.policy, options, overrides)
    }

    /// Returns whether the default store is only the memory of this instance. Then it also keeps the rules of
    /// the store `local`.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.store == Store::Memory && self.ledger.is_none()
    }

    /// Returns the ids of the enabled rules, by the name of their store, in the order in which stores decide.
    /// Rules of one store decide a request in one step. Rules of several stores compensate. Empty if all rules
    /// are in one store.
    #[must_use]
    pub fn rules_by_store(&self) -> Vec<(String, Vec<String>)> {
        let stores = self
            .stores
            .iter()
            .map(|it| RuleStore::Named(Arc::clone(&it.name)));
        let first = match self.is_local() {
            // The default store is the local one.
            true => vec![RuleStore::Default],
            false => vec![RuleStore::Local, RuleStore::Default],
        };
        let enabled = |rule: &&Rule| rule.state() != RuleState::Disabled;
        let by_store = first.into_iter().chain(stores).filter_map(|store| {
            let is_there = |rule: &&Rule| match rule.store() {
                RuleStore::Local if self.is_local() => store == RuleStore::Default,
                of_rule => *of_rule == store,
            };
            let rules = self.policy.rules.iter().filter(enabled).filter(is_there);
            let rules: Vec<String> = rules.map(|it| it.id().to_owned()).collect();
            (!rules.is_empty()).then(|| (store.name().to_owned(), rules))
        });
        let by_store: Vec<_> = by_store.collect();
        match by_store.len() {
            ..2 => Vec::new(),
            _ => by_store,
        }
    }

    /// Replaces the ledger of the config by the open ledger, because a reload neither opens nor closes
    /// a ledger. Quotas without a `durability` are recorded in the open ledger.
    pub fn keep_in(&mut self, ledger: Option<Ledger>) {
        if self.ledger.is_none() && ledger.is_some() {
            self.policy.record_in_ledger();
        }
        self.ledger = ledger;
    }
}

/// Reads the config at `path`, and the tenant files that it names. `${VAR}` reads the environment of
/// the process.
///
/// # Errors
/// If a file cannot be read or is not valid. The error has every problem.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    load_with(path, Unset::Rejected).map(|(config, _)| config)
}

/// A config that was read without the environment of its server.
#[derive(Debug)]
#[non_exhaustive]
pub struct Checked {
    /// How many rules the config has.
    pub rules: usize,
    /// The version of the config.
    pub version: String,
    /// A problem for each `${VAR}` that is not set, in the order of the file. The value could not
    /// be checked.
    pub unset: Vec<Problem>,
    /// Rules that may not do what their author expects.
    pub warnings: Vec<Warning>,
    /// The rules by their store, if there are several: see [`Config::rules_by_store`].
    pub by_store: Vec<(String, Vec<String>)>,
}

/// Checks the config at `path`, and the tenant files that it names, as [`load`] does. But a `${VAR}`
/// that is not set is not an error, so the check works without the secrets.
///
/// # Errors
/// As [`load`].
pub fn check(path: &Path) -> Result<Checked, ConfigError> {
    let (config, unset) = load_with(path, Unset::Returned)?;
    Ok(Checked {
        rules: config.policy.rules.len(),
        warnings: config.policy.warnings(),
        by_store: config.rules_by_store(),
        version: config.policy.version,
        unset,
    })
}

/// Reads the config at `path`, and the tenant files that it names, as [`load`] does. But a `${VAR}` that
/// is not set is not an error, so that rules can be tried without the secrets. Such a setting has its
/// default. The config must not be used to open doors, a store or a ledger.
///
/// # Errors
/// As [`load`]. A variable in the path of a tenant file must be set.
pub fn load_offline(path: &Path) -> Result<Config, ConfigError> {
    let (config, unset) = load_with(path, Unset::Returned)?;
    if !unset.is_empty() {
        let text = read_text(path)?;
        let mut problems = Problems::new(&text);
        let raw = parse_document(EMPTY_HELP, &mut problems)
            .and_then(|root| RawConfig::read(&root, &mut problems))
            .unwrap_or_default();
        raw.tenant_files(true, &process_env, &mut problems);
        if !problems.is_empty() {
            return Err(problems.into_error(&path.display().to_string()));
        }
    }
    Ok(config)
}

/// What happens if a variable of the environment is not set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unset {
    /// The config is rejected.
    Rejected,
    /// The problem is returned with the config, which must not be used by a server.
    Returned,
}

fn load_with(path: &Path, unset: Unset) -> Result<(Config, Vec<Problem>), ConfigError> {
    let text = read_text(path)?;
    let name = path.display().to_string();
    let (mut config, problems) = read(&name, &text, &process_env, true, unset)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    read_others(&mut config, &text, folder)?;
    Ok((config, problems))
}

/// Reads `text` as the config at `path`, as [`load`] reads the file. Tenant files are read from the folder
/// of `path`.
///
/// # Errors
/// As [`load`].
pub fn load_text(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let name = path.display().to_string();
    let (mut config, _) = read(&name, text, &process_env, true, Unset::Rejected)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    read_others(&mut config, text, folder)?;
    Ok(config)
}

/// Reads the other files that `config` names. `text` is the text of the config.
fn read_others(config: &mut Config, text: &str, folder: &Path) -> Result<(), ConfigError> {
    tenant_files::add_tenants(config, text, folder)?;
    authentication::read_files(config, folder)
}

fn process_env(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

/// Returns the other files that the config at `path` names now, and the directories of its tenant files.
/// This also works for a rejected config, as far as its text can be read.
#[must_use]
pub fn other_paths(path: &Path) -> Vec<PathBuf> {
    let Ok(text) = read_text(path) else {
        return Vec::new();
    };
    let mut problems = Problems::new(&text);
    let raw = parse_document(EMPTY_HELP, &mut problems)
        .and_then(|root| RawConfig::read(&root, &mut problems))
        .unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new(""));
    let given = raw.tenant_files(true, &process_env, &mut problems);
    let mut paths = tenant_files::all_paths(&given, folder);
    let authentication = &raw.authentication;
    paths.extend(authentication::paths(
        authentication,
        folder,
        &process_env,
        &mut problems,
    ));
    paths
}

/// Reads the text of the config at `path`, valid or not.
///
/// # Errors
/// If the file cannot be read, is too large, or is not text.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    tenant_files::read(path, "config", MAX_BYTES)
}

/// Reads the config `text`. Errors use `name` as the name of the file. `env` returns the values of
/// `${VAR}`.
///
/// # Errors
/// If the text is not a valid config. The error has every problem. A text cannot name tenant files.
///
/// ```
/// let error = tollgate_config::parse("rules.yaml", "version: 2\nrules: []\n", &|_| None).unwrap_err();
/// assert!(error.to_string().starts_with("rules.yaml:1:10: "));
/// ```
pub fn parse(
    name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, ConfigError> {
    read(name, text, env, false, Unset::Rejected).map(|(config, _)| config)
}

/// Reads a config. `files` says whether it may name other files.
fn read(
    name: &str,
    text: &str,
    env: Env<'_>,
    files: bool,
    unset: Unset,
) -> Result<(Config, Vec<Problem>), ConfigError> {
    if text.len() as u64 > MAX_BYTES {
        return Err(tenant_files::too_large(name, "config", MAX_BYTES));
    }
    let mut problems = Problems::new(text);
    let config = match parse_document(EMPTY_HELP, &mut problems) {
        Some(root) => {
            secrets::hide(&root, &mut problems);
            if foreign::report(&root, name, &mut problems) {
                None
            } else {
                RawConfig::read(&root, &mut problems)
                    .map(|raw| raw.validate(&root, env, files, &mut problems))
            }
        }
        None => {
            secrets::hide_in_text(&mut problems);
            None
        }
    };
    let outside = match unset {
        Unset::Rejected => Vec::new(),
        Unset::Returned => problems.take_outside(),
    };
    match config {
        Some(config) if problems.is_empty() => Ok((config, outside)),
        _ => Err(problems.into_error(name)),
    }
}

impl RawConfig {
    /// Turns the fields into a config. If problems were reported, the result must not be used.
    fn validate(
        &self,
        root: &Node,
        env: Env<'_>,
        files: bool,
        problems: &mut Problems<'_>,
    ) -> Config {
        let namespace = self.namespace(env, problems);
        let server = server::server(self.server.value(), env, problems);
        let store = store::store(self.store.value(), env, problems);
        let stores = store::named_stores(self.stores.value(), &store, env, problems);
        self.check_hash_secret(problems);
        self.check_time_header(&store, problems);
        let subjects = subjects::subjects(self.subjects.value(), env, problems);
        let headers = headers::headers(self.headers.value(), problems);
        let authentication =
            authentication::authentication(&self.authentication, env, files, problems);
        let upstreams = upstream::upstreams(&self.upstreams, env, problems);
        let routes = route::routes(self.routes.value(), &upstreams, problems);
        self.check_gateway(problems);
        let telemetry = telemetry::telemetry(self.telemetry.value(), env, problems);
        let ledger = ledger::ledger(&self.ledger, &namespace, env, problems);
        let events = events::events(self.events.value(), env, problems);
        let start = Place::new(root.place.start, root.place.start);
        // A `ledger` field that could not be read counts as a ledger.
        let has_ledger = !self.ledger.is_absent();
        let names: Vec<Arc<str>> = stores.iter().map(|it| Arc::clone(&it.name)).collect();
        let outside = Outside {
            ledger: has_ledger,
            stores: &names,
        };
        let policy = self.policy.validate(start, outside, problems);
        let mut config = Config {
            namespace,
            server,
            store,
            stores,
            subjects,
            headers,
            routes,
            authentication,
            upstreams,
            telemetry,
            ledger,
            events,
            policy,
            tenant_files: self.tenant_files(files, env, problems),
            files: Vec::new(),
            watched: Vec::new(),
        };
        authentication::add_claims(&mut config, start, problems);
        config
    }

    fn namespace(&self, env: Env<'_>, problems: &mut Problems<'_>) -> String {
        let Some(at) = self.namespace.get() else {
            return "default".to_owned();
        };
        let namespace = expand(at, env, problems).unwrap_or_else(|| "default".to_owned());
        if !is_id(&namespace) {
            let message = format!("`{}` cannot be a namespace", Short(&namespace));
            problems.report(at.place, message, ID_HELP);
        }
        namespace
    }

    /// Reports a missing `hash_secret`. Instances that share a store must hash subjects in the same
    /// way. So must a process that continues the ledger of an earlier process.
    fn check_hash_secret(&self, problems: &mut Problems<'_>) {
        let absent = match &self.subjects {
            Field::Absent => true,
            Field::Broken { .. } => false,
            Field::Given { at, .. } => at.value.hash_secret.is_absent(),
        };
        if let Some(RawStore::Redis { .. }) = self.store.value()
            && let (true, Some(key)) = (absent, self.store.key())
        {
            problems.report(key, NO_SECRET, SECRET_HELP);
        } else if let (true, Some(key)) = (absent, self.stores.key()) {
            problems.report(key, NO_SECRET, SECRET_HELP);
        } else if let (true, Some(key)) = (absent, self.ledger.key()) {
            problems.report(key, NO_SECRET_FOR_LEDGER, SECRET_HELP);
        } else if let (true, Some(denials)) = (
            absent,
            self.telemetry.value().and_then(|it| it.denials.value()),
        ) && let Some(key) = denials.directory.key()
        {
            problems.report(key, NO_SECRET_FOR_DENIALS, SECRET_HELP);
        }
    }

    /// Reports a `time_header` with a store that uses a clock of its own.
    fn check_time_header(&self, store: &Store, problems: &mut Problems<'_>) {
        let uses_it = match (store, self.store.is_absent()) {
            (Store::Redis(redis), _) => redis.clock == ClockSource::Caller,
            // A broken store was reported already.
            (Store::Memory, absent) => !absent && self.store.value().is_none(),
        };
        let subjects = self.subjects.value();
        if let Some(key) = subjects.and_then(|it| it.time_header.key())
            && !uses_it
        {
            let message = "`time_header` needs a store whose clock is the caller's";
            let help = "write `clock: caller` in `store.redis`, or remove `time_header`";
            problems.report(key, message, help);
        }
    }

    /// Reports a gateway that has no upstream.
    fn check_gateway(&self, problems: &mut Problems<'_>) {
        let is_empty = match &self.upstreams {
            Field::Absent => true,
            Field::Broken { .. } => false,
            Field::Given { at, .. } => at.value.0.is_empty(),
        };
        let gateway = self.server.value().and_then(|it| it.gateway.key());
        if let (true, Some(key)) = (is_empty, gateway) {
            problems.report(key, NO_UPSTREAM, NO_UPSTREAM_HELP);
        }
    }

    /// Returns the paths of tenant files, as written.
    fn tenant_files(&self, files: bool, env: Env<'_>, problems: &mut Problems<'_>) -> Vec<String> {
        let given = self.tenant_files.value().map_or(&[][..], |list| &list.0);
        if let (Some(key), false, false) = (self.tenant_files.key(), files, given.is_empty()) {
            let message = "a config that is not a file cannot name other files";
            problems.report(key, message, "write the tenants under `tenants`");
            return Vec::new();
        }
        given
            .iter()
            .filter_map(|at| expand(at, env, problems))
            .collect()
    }
}

/// Makes the JSON schema (draft 2020-12) of a config file, for editors. The schema comes from the
/// declarations that also read the file.
///
/// ```
/// let schema = tollgate_config::json_schema();
/// assert_eq!(schema["type"], "object");
/// assert!(schema["properties"]["rules"].is_object());
/// ```
#[cfg(feature = "schema")]
#[must_use]
pub fn json_schema() -> serde_json::Value {
    let generator = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<RawConfig>();
    schema.insert("title".to_owned(), "Tollgate config".into());
    schema.to_value()
}
