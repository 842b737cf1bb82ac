//! Where rules come from: a file, or the starter rules.

use std::path::Path;

use tollgate::{Config, ConfigError};

/// The rules of a server that was given none.
pub(crate) const STARTER: &str = include_str!("starter.yaml");

/// The config at `path`, or the starter config.
pub(crate) fn load(path: Option<&Path>) -> Result<Config, String> {
    let loaded = match path {
        Some(path) => tollgate_rules::load(path),
        None => tollgate_rules::parse("starter.yaml", STARTER, &|name| std::env::var(name).ok()),
    };
    loaded.map_err(|error| render(&error))
}

/// A config's problems, coloured on a terminal.
pub(crate) fn render(error: &ConfigError) -> String {
    if crate::colour(&std::io::stderr()) {
        error.render_color()
    } else {
        error.to_string()
    }
}
