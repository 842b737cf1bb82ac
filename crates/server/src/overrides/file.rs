//! The file that stores named texts if the engine's store is in memory: a JSON object of overrides or of
//! config versions by name.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;

use serde_json::Value;
use tollgate_ledger::private_file;

use super::OverrideError;

/// A larger file is rejected. A thousand overrides and ten thousand blocks need less than this.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Returns the stored texts; none if there is no file.
pub(crate) async fn load(path: &Path) -> Result<BTreeMap<String, String>, OverrideError> {
    let file = path.to_owned();
    let loading = tokio::task::spawn_blocking(move || {
        let file = match private_file::open(OpenOptions::new().read(true), &file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            opened => opened?,
        };
        let mut text = String::new();
        file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_BYTES {
            let why = format!("it is larger than {} MiB", MAX_BYTES >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let stored: BTreeMap<String, Value> = serde_json::from_str(&text)?;
        let texts = stored.into_iter().map(|(name, it)| (name, it.to_string()));
        Ok(texts.collect())
    });
    let loaded = loading.await.map_err(io::Error::other);
    loaded
        .flatten()
        .map_err(|error| OverrideError::Unreadable(path.to_owned(), error))
}

/// Replaces the file as a whole: after a crash it is the old one or the new one.
pub(crate) async fn write<'t>(
    path: &Path,
    texts: impl Iterator<Item = (&'t str, &'t str)>,
) -> Result<(), OverrideError> {
    let values = texts.map(|(name, text)| (name, super::value(text)));
    let text = serde_json::to_string_pretty(&values.collect::<BTreeMap<&str, Value>>());
    let target = path.to_owned();
    let writing = tokio::task::spawn_blocking(move || {
        if let Some(directory) = target.parent() {
            private_file::create_directory(directory)?;
        }
        let aside = target.with_extension("json.new");
        // A crash may have left one.
        match std::fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private_file::open(OpenOptions::new().write(true).create_new(true), &aside)?;
        file.write_all(text?.as_bytes())?;
        // Sync before the rename. Otherwise a crash could leave an empty file.
        file.sync_all()?;
        std::fs::rename(&aside, &target)
    });
    let written = writing.await.map_err(io::Error::other);
    written
        .flatten()
        .map_err(|error| OverrideError::File(path.to_owned(), error))
}
