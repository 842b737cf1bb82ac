//! Reads the files of a config: its own text, and its tenant files.
//!
//! A tenant file is YAML, JSON or CSV. A YAML or JSON file has a map of names to tenants, or a list of
//! rows with a field `tenant`. A CSV file has a column for each number. Every form becomes the same map
//! as the field `tenants` of a config, and gets the same checks.

use std::path::{Path, PathBuf};

use tollgate_rules::document::{Node, Place, Problems, Value, parse_document, wanted};
use tollgate_rules::{ConfigError, TenantReader};

use crate::config::Config;
use crate::csv;

/// How to start an empty tenant file.
const EMPTY_HELP: &str = "write names and tenants, such as `acme: { plan: free }`";

/// Larger tenant files are rejected unread.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The most files in a directory. A directory with more files is probably a mistake.
const MAX_FILES: usize = 10_000;

/// Whether the file has an extension of tenant files.
fn is_tenant_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|it| it.to_str());
    matches!(extension, Some("yaml" | "yml" | "json" | "csv"))
}

/// Reads the text of a file of at most `most` bytes.
pub(crate) fn read(path: &Path, what: &str, most: u64) -> Result<String, ConfigError> {
    let name = path.display().to_string();
    let unreadable = |error: std::io::Error| unreadable(path, what, &error);
    if std::fs::metadata(path).map_err(unreadable)?.len() > most {
        return Err(too_large(&name, what, most));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("the {what} is not UTF-8 text (byte {at})");
        ConfigError::unreadable(&name, message, "save the file as UTF-8")
    })
}

fn unreadable(path: &Path, what: &str, error: &std::io::Error) -> ConfigError {
    let message = format!("cannot read the {what}: {error}");
    let help = "check the path and its permissions";
    ConfigError::unreadable(&path.display().to_string(), message, help)
}

pub(crate) fn too_large(name: &str, what: &str, most: u64) -> ConfigError {
    let message = format!("the {what} is larger than {} MiB", most >> 20);
    let help = match what {
        "config" => "use fewer rules, match values by glob, and keep tenants in `tenant_files`",
        _ => "split it into several files of one directory",
    };
    ConfigError::unreadable(name, message, help)
}

/// Adds the tenants of all files that `config` names. `text` is the text of the config. Paths are
/// relative to `folder`.
pub(crate) fn add_tenants(
    config: &mut Config,
    text: &str,
    folder: &Path,
) -> Result<(), ConfigError> {
    if config.tenant_files.is_empty() {
        return Ok(());
    }
    let mut version = blake3::Hasher::new();
    version.update(text.as_bytes());
    let paths = paths(&config.tenant_files, folder)?;
    let mut reader = TenantReader::new(&config.policy);
    for path in &paths {
        let text = read(path, "tenant file", MAX_BYTES)?;
        version.update(&(text.len() as u64).to_le_bytes());
        version.update(text.as_bytes());
        let name = path.display().to_string();
        let mut problems = Problems::new(&text);
        if let Some(root) = tenants(path, &mut problems) {
            reader.add(&name, &root, &mut problems);
        }
        if !problems.is_empty() {
            return Err(problems.into_error(&name));
        }
    }
    config.policy.tiers = reader.finish();
    config.policy.version = version.finalize().to_hex()[..12].to_owned();
    let given = config.tenant_files.iter().map(|given| folder.join(given));
    config.watched = given.filter(|path| path.is_dir()).collect();
    config.files = paths;
    Ok(())
}

/// Returns the tenant files and the directories that hold them. A directory that cannot be read counts
/// as empty.
pub(crate) fn all_paths(given: &[String], folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::with_capacity(given.len());
    for given in given {
        let path = folder.join(given);
        if path.is_dir() {
            all.extend(held(&path).unwrap_or_default());
        }
        all.push(path);
    }
    all
}

/// Returns the tenant files in order. Each directory is replaced by the files in it.
fn paths(given: &[String], folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let mut paths = Vec::with_capacity(given.len());
    for given in given {
        let path = folder.join(given);
        if path.is_dir() {
            let held = held(&path).map_err(|error| unreadable(&path, "tenant files", &error))?;
            paths.extend(held);
        } else if is_tenant_file(&path) {
            paths.push(path);
        } else {
            let message = "the name of this tenant file does not show its format".to_owned();
            let help = "end it with .yaml, .yml, .json or .csv";
            let name = path.display().to_string();
            return Err(ConfigError::unreadable(&name, message, help));
        }
    }
    Ok(paths)
}

/// Returns the tenant files of a directory, by name. Other files and hidden files are ignored.
fn held(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut held = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if held.len() == MAX_FILES {
            let many = format!("the directory holds more than {MAX_FILES} files");
            return Err(std::io::Error::other(many));
        }
        let name = path.file_name().unwrap_or_default();
        let hidden = name.as_encoded_bytes().starts_with(b".");
        if is_tenant_file(&path) && !hidden && !path.is_dir() {
            held.push(path);
        }
    }
    held.sort();
    Ok(held)
}

/// Reads the tenants of a file as a map of names to tenants. The tenants are not checked yet.
fn tenants(path: &Path, problems: &mut Problems<'_>) -> Option<Node> {
    if path.extension().is_some_and(|it| it == "csv") {
        return csv::parse(problems);
    }
    let root = parse_document(EMPTY_HELP, problems)?;
    match &root.value {
        Value::List(rows) => Some(by_name(root.place, rows, problems)),
        _ => Some(root),
    }
}

/// Turns rows with a field `tenant` into a map of names to tenants.
fn by_name(place: Place, rows: &[Node], problems: &mut Problems<'_>) -> Node {
    let mut tenants = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Map(entries) = &row.value else {
            let help = "write rows such as { tenant: acme, plan: free }";
            wanted("a tenant, a map of names to values", help, row, problems);
            continue;
        };
        let is_name = |(key, _): &&(Node, Node)| key.text() == Some("tenant");
        match entries.iter().find(is_name) {
            Some((_, name)) => {
                let rest = entries.iter().filter(|entry| !is_name(entry));
                let rest = Node::map(row.place, rest.cloned().collect());
                tenants.push((name.clone(), rest));
            }
            None => {
                let help =
                    "write the tenant's name, as requests carry it in the attribute `tenant`";
                problems.report(row.place, "this row has no `tenant`", help);
            }
        }
    }
    Node::map(place, tenants)
}
