//! Where rules and state come from: a file or the starter rules, and what flags say instead.

use std::path::PathBuf;

use tollgate::{Config, ConfigError, Engine};
use tollgate_config::{Secret, Store};

/// The rules of a server that was given none.
pub(crate) const STARTER: &str = include_str!("starter.yaml");

/// What the starter rules hash subjects with in a shared store. Known to everybody, as they are.
pub(crate) const STARTER_SECRET: &str = "the starter rules of tollgate";

/// Which rules and which store. Flags win over the environment, which wins over the file.
#[derive(Clone, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The rules. Without it: starter rules that show several algorithms
    #[arg(long, short, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Where state lives: memory, redis://host:6379, redis-sentinel://host:26379/master or
    /// redis-cluster://host:6379; rediss for TLS. Without it: what the file says, or memory
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_STORE",
        hide_env_values = true
    )]
    store: Option<String>,
}

impl ConfigArgs {
    /// The config that the file and the flags make.
    pub(crate) fn load(&self) -> Result<Config, String> {
        let loaded = match &self.config {
            Some(path) => tollgate_config::load(path),
            None => {
                tollgate_config::parse("starter.yaml", STARTER, &|name| std::env::var(name).ok())
            }
        };
        let config = loaded.map_err(|error| render(&error))?;
        self.over(config).map_err(|error| format!("error: {error}"))
    }

    /// `config` with what the flags say instead.
    pub(crate) fn over(&self, mut config: Config) -> Result<Config, String> {
        if let Some(flag) = &self.store {
            let store = Store::from_flag(flag).map_err(|error| format!("--store: {error}"))?;
            config.store.override_by(store);
            if self.config.is_none() && config.store != Store::Memory {
                config.subjects.hash_secret = Some(Secret::new(STARTER_SECRET.to_owned()));
            }
            let checked = config.check_store();
            checked.map_err(|error| format!("--store: {error}"))?;
        }
        Ok(config)
    }

    /// Whether the rules are those that everybody has.
    pub(crate) fn is_starter(&self) -> bool {
        self.config.is_none()
    }
}

/// The limiter that a config names, its store looked at.
pub(crate) async fn start(config: &Config) -> Result<Engine, String> {
    let engine = Engine::start(config).await;
    engine.map_err(|error| format!("error: {error}"))
}

/// Runs a command that may wait for a store.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| format!("error: cannot start the runtime: {error}"))?;
    runtime.block_on(future)
}

/// A config's problems, coloured on a terminal.
pub(crate) fn render(error: &ConfigError) -> String {
    if crate::colour(&std::io::stderr()) {
        error.render_color()
    } else {
        error.to_string()
    }
}
