//! The config of a command: a file or the starter rules, changed by flags.

use std::path::PathBuf;

use tollgate::{Config, ConfigError, Engine, Span};
use tollgate_config::{Secret, Store};

use crate::failed;
use crate::terminal::has_colour;

/// The rules of a server without a config file.
pub(crate) const STARTER: &str = include_str!("starter.yaml");

/// The hash secret of the starter rules in a shared store. The secret is public, like the rules.
pub(crate) const STARTER_SECRET: &str = "the starter rules of tollgate";

/// The rules and the store. Flags override the environment, which overrides the file.
#[derive(Clone, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The config file [default: starter rules that show several algorithms]
    #[arg(long, short, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Where to keep state: memory, redis://host:6379, redis-sentinel://host:26379/master or
    /// redis-cluster://host:6379; rediss for TLS [default: the store in the config file, or memory]
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_STORE",
        hide_env_values = true
    )]
    store: Option<String>,
}

impl ConfigArgs {
    /// Loads the file and applies the flags.
    pub(crate) fn load(&self) -> Result<Config, String> {
        let variable = |name: &str| std::env::var(name).ok();
        let loaded = match &self.config {
            Some(path) => tollgate_config::load(path),
            None => tollgate_config::parse("starter.yaml", STARTER, &variable),
        };
        let config = loaded.map_err(|error| render(&error))?;
        self.apply_flags(config).map_err(failed)
    }

    pub(crate) fn apply_flags(&self, mut config: Config) -> Result<Config, String> {
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
}

/// Starts the engine of a config, and checks that its store answers.
pub(crate) async fn start(config: &Config) -> Result<Engine, String> {
    let mut config = config.clone();
    if let Store::Redis(redis) = &mut config.store {
        // A person waits for the answer.
        redis.connect_patience = Span::ZERO;
    }
    Engine::start(&config).await.map_err(failed)
}

/// Runs a future on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| format!("error: failed to start the runtime: {error}"))?;
    runtime.block_on(future)
}

/// Renders the problems of a config, with colours on a terminal.
pub(crate) fn render(error: &ConfigError) -> String {
    match has_colour(&std::io::stderr()) {
        true => error.render_color(),
        false => error.to_string(),
    }
}
