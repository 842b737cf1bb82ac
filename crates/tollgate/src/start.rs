//! Builds a limiter in memory from a config, and the errors of starting.

use std::path::Path;

use tollgate_config::{Config, ConfigError, Rule};
use tollgate_store::{Clock, MemoryStore};

use crate::engine::Engine;
use crate::limiter::Limiter;
use crate::stores::Traced;

/// Why a limiter cannot be started. The text names the setting and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct StartError {
    what: String,
    passing: bool,
    of_store: bool,
}

impl StartError {
    pub(crate) fn new(what: impl Into<String>) -> StartError {
        StartError {
            what: what.into(),
            passing: false,
            of_store: false,
        }
    }

    /// Makes an error. `passing` is what `is_passing` returns.
    #[cfg(any(feature = "ledger", feature = "redis"))]
    pub(crate) fn passing(what: impl Into<String>, passing: bool) -> StartError {
        StartError {
            passing,
            ..StartError::new(what)
        }
    }

    /// Makes an error of the store. `passing` is what `is_passing` returns.
    #[cfg(feature = "redis")]
    pub(crate) fn of_store(what: impl Into<String>, passing: bool) -> StartError {
        StartError {
            of_store: true,
            ..StartError::passing(what, passing)
        }
    }

    /// Returns whether the reason is that the store cannot be reached at the moment. Problems of the ledger
    /// do not count.
    #[must_use]
    pub fn is_store_unreachable(&self) -> bool {
        self.of_store && self.passing
    }

    /// Returns whether the error may go away by itself, for example when a server is down.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.passing
    }
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> StartError {
        StartError::new(error.to_string())
    }
}

impl Limiter {
    /// Makes a limiter in memory with the rules of a file.
    ///
    /// # Errors
    /// If the file cannot be read, anything in it is wrong, or it names a store or a ledger.
    pub fn load(path: &Path) -> Result<Limiter, StartError> {
        Limiter::new(&tollgate_config::load(path)?)
    }

    /// Makes a limiter in memory with the rules of a text. Errors use `name` as the name of the file.
    ///
    /// # Errors
    /// If anything in the text is wrong, or it names a store or a ledger.
    pub fn from_yaml(name: &str, text: &str) -> Result<Limiter, StartError> {
        let env = |variable: &str| std::env::var(variable).ok();
        Limiter::new(&tollgate_config::parse(name, text, &env)?)
    }

    /// Makes a limiter in memory with rules from code.
    ///
    /// ```
    /// use tollgate::{Attributes, Limit, Limiter, RuleBuilder, Span};
    ///
    /// let login = RuleBuilder::new("login", Limit::sliding_log(2, Span::from_secs(600))?)
    ///     .matching("action", ["login"])
    ///     .per(["user"])
    ///     .build()?;
    /// let limiter = Limiter::from_rules([login])?;
    /// let ann = Attributes::from([("action", "login"), ("user", "ann")]);
    /// assert_eq!([0; 3].map(|_| limiter.check_now(&ann).is_allowed()), [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If two rules have the same id, or a rule needs another section of a file: see
    /// [`Policy::from_rules`](crate::Policy::from_rules).
    pub fn from_rules(rules: impl IntoIterator<Item = Rule>) -> Result<Limiter, StartError> {
        Limiter::new(&Config::from_rules(rules)?)
    }

    /// Makes a limiter in memory with the rules of a validated config, on the machine's clock.
    ///
    /// # Errors
    /// If the config names a store or a ledger: [`Engine::start`](crate::Engine::start) builds them.
    pub fn new(config: &Config) -> Result<Limiter, StartError> {
        check_in_memory(config)?;
        let store = MemoryStore::new(config.subjects.max_keys);
        Ok(Limiter::builder(config, Traced(store)).build())
    }
}

impl Engine {
    /// Starts an engine with the rules of a text, without a check of its store. Errors use `name` as
    /// the name of the file.
    ///
    /// # Errors
    /// If anything in the text is wrong, or names something that cannot be read or is not part of this
    /// build.
    pub fn from_yaml(name: &str, text: &str) -> Result<Engine, StartError> {
        let env = |variable: &str| std::env::var(variable).ok();
        Engine::start_unchecked(&tollgate_config::parse(name, text, &env)?)
    }
}

impl<C: Clock + Clone + 'static> Limiter<Traced<MemoryStore<C>>> {
    /// Makes a limiter in memory with a custom clock, for tests and simulations.
    ///
    /// # Errors
    /// If the config names a store or a ledger.
    pub fn with_clock(config: &Config, clock: C) -> Result<Self, StartError> {
        check_in_memory(config)?;
        let store = MemoryStore::with_clock(config.subjects.max_keys, clock.clone());
        Ok(Limiter::builder(config, Traced(store)).clock(clock).build())
    }
}

/// Rejects a config that names a store or a ledger. A limiter in memory must not silently replace them.
fn check_in_memory(config: &Config) -> Result<(), StartError> {
    let section = match (&config.store, &config.ledger) {
        (tollgate_config::Store::Redis(_), _) => "store",
        _ if !config.stores.is_empty() => "stores",
        (_, Some(_)) => "ledger",
        _ => return Ok(()),
    };
    Err(StartError::new(format!(
        "the config has a `{section}` section, and this limiter keeps its state in memory only: \
         use `Engine::start`, or remove the section"
    )))
}
