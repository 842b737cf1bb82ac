//! Versions of the config: the texts that were in force, for a rollback.
//!
//! Versions are kept in the store or, with state in memory, in a file of the data directory. Their number
//! is bounded: a new version removes the one that was put in force the longest time ago. Secrets are
//! [masked](tollgate_config::mask). Texts of tenant files are not kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tollgate::Engine;
use tollgate_redis::SharedValues;

use crate::overrides::OverrideError;
use crate::overrides::file;

/// The name of the file in its directory.
const FILE: &str = "configs.json";

/// The most versions.
pub const MAX_VERSIONS: usize = 20;

/// A longer text is not kept. Its version is listed, and cannot be put in force again.
const MAX_TEXT: usize = 1024 * 1024;

/// The version of the stored form.
const FORM: u32 = 1;

/// How often a version is stored again after another instance has stored one.
const ATTEMPTS: usize = 5;

/// A version of the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConfigVersion {
    /// The version of this form.
    pub v: u32,
    /// The version of the config.
    pub version: String,
    /// When it was last put in force, as in RFC 3339.
    pub at: String,
    /// The author: the name of a token, or `file`, `signal` or `rollback`.
    pub who: String,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The text, with masks in place of secrets; `None` if it is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl ConfigVersion {
    pub(super) fn new(version: &str, masked: String) -> ConfigVersion {
        ConfigVersion {
            v: FORM,
            version: version.to_owned(),
            at: String::new(),
            who: super::FILE.to_owned(),
            why: None,
            text: Some(masked).filter(|text| text.len() <= MAX_TEXT),
        }
    }

    fn read(text: &str) -> Option<ConfigVersion> {
        serde_json::from_str(text).ok()
    }
}

/// Stores versions of the config.
pub(super) enum Versions {
    Nowhere,
    File(PathBuf),
    Store(Box<SharedValues>),
}

impl Versions {
    /// Keeps versions in the engine's store or, if it has none, in `directory`.
    pub(super) fn new(engine: &Engine, directory: &Path) -> Versions {
        match engine.shared_configs() {
            Some(values) => Versions::Store(Box::new(values)),
            None => Versions::File(directory.join(FILE)),
        }
    }

    /// Stores a version. If `only_new`, a version that is known already stays as it is.
    pub(super) async fn record(
        &self,
        version: &ConfigVersion,
        only_new: bool,
    ) -> Result<(), OverrideError> {
        let (name, text) = (&version.version, serde_json::json!(version).to_string());
        match self {
            Versions::Nowhere => Ok(()),
            Versions::File(path) => {
                let mut all = file::load(path).await?;
                if only_new && all.contains_key(name) {
                    return Ok(());
                }
                all.insert(name.clone(), text);
                while all.len() > MAX_VERSIONS
                    && let Some(oldest) = oldest(&all, name)
                {
                    all.remove(&oldest);
                }
                file::write(path, all.iter().map(|(name, text)| (&**name, &**text))).await
            }
            Versions::Store(values) => {
                if only_new && values.get(name).await?.is_some() {
                    return Ok(());
                }
                for _ in 0..ATTEMPTS {
                    if values.put(name, &text, MAX_VERSIONS).await? {
                        break;
                    }
                    let all: BTreeMap<_, _> =
                        values.all(MAX_VERSIONS).await?.1.into_iter().collect();
                    if let Some(oldest) = oldest(&all, name) {
                        let only = all.get(&oldest).map(String::as_str);
                        values.remove(&oldest, only).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns all versions, the one that was put in force last first. Versions that cannot be read, for
    /// example of a newer Tollgate, are left out.
    pub(super) async fn list(&self) -> Result<Vec<ConfigVersion>, OverrideError> {
        let all = match self {
            Versions::Nowhere => BTreeMap::new(),
            Versions::File(path) => file::load(path).await?,
            Versions::Store(values) => values.all(MAX_VERSIONS).await?.1.into_iter().collect(),
        };
        let read = all.values().filter_map(|text| ConfigVersion::read(text));
        let mut versions: Vec<ConfigVersion> = read.collect();
        // Times in this form sort as text.
        versions.sort_by(|one, other| other.at.cmp(&one.at));
        Ok(versions)
    }

    pub(super) async fn find(&self, version: &str) -> Result<Option<ConfigVersion>, OverrideError> {
        let text = match self {
            Versions::Nowhere => None,
            Versions::File(path) => file::load(path).await?.remove(version),
            // One field counts the changes, and is not a version.
            Versions::Store(values) => values.get(version).await?,
        };
        Ok(text.and_then(|text| ConfigVersion::read(&text)))
    }
}

/// Returns the name of the version, other than `but`, that was put in force the longest time ago. A version
/// that cannot be read counts as the oldest.
fn oldest(all: &BTreeMap<String, String>, but: &str) -> Option<String> {
    let others = all.iter().filter(|(name, _)| *name != but);
    let at = |text: &str| ConfigVersion::read(text).map(|it| it.at);
    let oldest = others.min_by_key(|(_, text)| at(text));
    oldest.map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_versions_are_kept_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let versions = Versions::File(folder.path().join("data").join(FILE));
        assert!(versions.list().await.unwrap().is_empty());
        for number in 0..MAX_VERSIONS + 5 {
            let version = ConfigVersion {
                at: format!("2026-01-01T00:00:{number:02}.000Z"),
                ..ConfigVersion::new(&format!("v{number}"), "rules: []".to_owned())
            };
            versions.record(&version, false).await.unwrap();
        }
        let all = versions.list().await.unwrap();
        assert_eq!(all.len(), MAX_VERSIONS);
        assert_eq!((&*all[0].version, &*all[19].version), ("v24", "v5"));
        assert_eq!(versions.find("v0").await.unwrap(), None);
        let again = ConfigVersion::new("v24", "other".to_owned());
        versions.record(&again, true).await.unwrap();
        let known = versions.find("v24").await.unwrap().unwrap();
        assert_eq!(known.text.as_deref(), Some("rules: []"));
        versions.record(&again, false).await.unwrap();
        let known = versions.find("v24").await.unwrap().unwrap();
        assert_eq!(known.text.as_deref(), Some("other"));
    }

    #[test]
    fn a_long_text_is_not_kept() {
        let long = ConfigVersion::new("v", "x".repeat(MAX_TEXT + 1));
        assert_eq!(long.text, None);
    }

    #[test]
    fn a_record_of_a_newer_form_is_read() {
        let text = r#"{"v":2,"version":"a","at":"2026-01-01T00:00:00.000Z","who":"ops","text":"x","more":[1]}"#;
        let read = ConfigVersion::read(text).unwrap();
        assert_eq!((&*read.version, read.text.as_deref()), ("a", Some("x")));
    }
}
