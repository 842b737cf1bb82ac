//! The config of a command: a file or the starter rules, changed by flags.

use std::path::PathBuf;

use tollgate::{Config, ConfigError, Engine, Span};
use tollgate_config::{Secret, Store};

use crate::failed;
use crate::terminal::has_colour;

/// The rules of a server without a config file.
pub(crate) const STARTER: &str = include_str!("starter.yaml");

/// The rules of a gateway without a config file.
pub(crate) const GATEWAY_STARTER: &str = include_str!("gateway-starter.yaml");

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
        self.load_or(STARTER)
    }

    /// Loads the file, or `starter` if there is none, and applies the flags.
    pub(crate) fn load_or(&self, starter: &str) -> Result<Config, String> {
        let variable = |name: &str| std::env::var(name).ok();
        let loaded = match &self.config {
            Some(path) => tollgate_config::load(path),
            None => tollgate_config::parse("starter.yaml", starter, &variable),
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

/// The rules for a command that only tries a request. The store and the ledger that the config names
/// may be those of a production server, so they are used only if a flag asks for them.
#[derive(clap::Args)]
pub(crate) struct TrialArgs {
    /// The config file [default: starter rules that show several algorithms]
    #[arg(long, short, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,

    /// Use the state of the server: the store and the ledger that the config file names, or the
    /// store of TOLLGATE_STORE. `check` then charges real usage
    #[arg(long)]
    live: bool,

    /// Use this store, such as redis://host:6379 [default: an empty store in memory]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

impl TrialArgs {
    /// Loads the config. Removes its store and its ledger, unless a flag asks for them, and prints
    /// which of them are not used.
    pub(crate) fn load(&self) -> Result<Config, String> {
        self.load_with_stores().map(|(config, _)| config)
    }

    /// Returns the config twice: as [`load`](Self::load) does, and with its own store and ledger.
    pub(crate) fn load_with_stores(&self) -> Result<(Config, Config), String> {
        let of_server = || std::env::var("TOLLGATE_STORE").ok();
        let store = self.store.clone();
        let args = ConfigArgs {
            config: self.config.clone(),
            store: store.or_else(|| of_server().filter(|_| self.live)),
        };
        let mut config = args.load()?;
        let whole = config.clone();
        if self.live {
            return Ok((config, whole));
        }
        let has_store =
            self.store.is_none() && config.store != Store::Memory || !config.stores.is_empty();
        let not_used = match (has_store, config.ledger.is_some()) {
            (true, true) => "the store and the ledger of the config are not used",
            (true, false) => "the store of the config is not used",
            (false, true) => "the ledger of the config is not used",
            (false, false) => "",
        };
        config.stores.clear();
        if self.store.is_none() {
            config.store = Store::Memory;
        }
        config.keep_in(None);
        if !not_used.is_empty() {
            let instead = match config.store {
                Store::Memory => "an empty store in memory decides",
                _ => "the store of --store decides",
            };
            eprintln!("note: {not_used}, {instead}; --live uses the state of the server");
        }
        Ok((config, whole))
    }
}

/// Starts the engine of a config, and checks that its store answers.
pub(crate) async fn start(config: &Config) -> Result<Engine, String> {
    let mut config = config.clone();
    if let Store::Redis(redis) = &mut config.store {
        // A person waits for the answer, so try to connect only once.
        redis.connect_patience = Span::ZERO;
    }
    for store in &mut config.stores {
        store.redis.connect_patience = Span::ZERO;
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
