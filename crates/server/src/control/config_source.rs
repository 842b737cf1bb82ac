//! The file that a config comes from.

use std::collections::HashMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinError;
use tollgate::{Config, ConfigError};

/// The audit trail and `/readyz` show at most this many bytes of the first problem.
const MAX_FIRST: usize = 500;

/// Where a config comes from: a file, and settings that override the file, such as flags.
pub struct Source {
    path: Arc<Path>,
    finish: Finish,
    /// The other files that the config depends on: files of tenants, and their directories.
    others: Mutex<Vec<PathBuf>>,
    /// The stamps that all files had before the first of them was read.
    first: HashMap<PathBuf, Option<Stamp>>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

type Finish = Box<dyn Fn(Config) -> Result<Config, String> + Send + Sync>;

/// Identifies one version of a file: its device, inode, size, and the time of its last change.
///
/// Links are followed: a link that points to another file makes another stamp.
pub(super) type Stamp = (u64, u64, u64, (i64, i64));

/// The stamps of the config file and of the other files; `None` for a missing file.
pub(super) type Stamps = Vec<Option<Stamp>>;

fn stamp(path: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    let modified = (file.mtime(), file.mtime_nsec());
    Some((file.dev(), file.ino(), file.size(), modified))
}

impl Source {
    /// Takes the config from the file at `path`. Create the source before the file is first read,
    /// so that no change is missed.
    #[must_use]
    pub fn new(path: PathBuf) -> Source {
        let own = stamp(&path);
        let others = tollgate_config::other_paths(&path).into_iter();
        let mut first: HashMap<_, _> = others.map(|it| (it.clone(), stamp(&it))).collect();
        first.insert(path.clone(), own);
        Source {
            first,
            others: Mutex::default(),
            path: path.into(),
            finish: Box::new(Ok),
        }
    }

    /// Applies `finish` to the config each time the file is read.
    #[must_use]
    pub fn finished_by(
        mut self,
        finish: impl Fn(Config) -> Result<Config, String> + Send + Sync + 'static,
    ) -> Source {
        self.finish = Box::new(finish);
        self
    }

    /// Returns the stamps that the files of `config` had before they were first read. A file that the
    /// config did not name at that time has no stamp, so it counts as changed. Remembers the files of
    /// `config`.
    pub(super) fn first(&self, config: &Config) -> Stamps {
        let files = config.other_files().iter();
        let all = files.chain(config.tenant_directories());
        let mut others = self.others.lock();
        *others = all.cloned().collect();
        let own = std::iter::once(&*self.path);
        let all = own.chain(others.iter().map(PathBuf::as_path));
        let first = all.map(|path| self.first.get(path).copied().flatten());
        first.collect()
    }

    /// Finds all files that the config depends on now, and returns their stamps. Finds them even if the
    /// config has problems, so that a fix in any of the files is seen.
    pub(super) async fn find_files(self: &Arc<Self>) -> Stamps {
        let source = Arc::clone(self);
        let looking = tokio::task::spawn_blocking(move || {
            // This stamp is taken before the names of the other files are read, so that a change in
            // between is seen the next time.
            let mut stamps = vec![stamp(&source.path)];
            let others = tollgate_config::other_paths(&source.path);
            stamps.extend(others.iter().map(|path| stamp(path)));
            *source.others.lock() = others;
            stamps
        });
        looking.await.unwrap_or_default()
    }

    /// Returns the current stamps of the files that were found last.
    pub(super) async fn stamps(&self) -> Stamps {
        let (path, others) = (Arc::clone(&self.path), self.others.lock().clone());
        let looking = tokio::task::spawn_blocking(move || {
            let others = others.iter().map(|path| stamp(path));
            std::iter::once(stamp(&path)).chain(others).collect()
        });
        looking.await.unwrap_or_default()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the text of the file now.
    pub(super) fn text(&self) -> Result<String, RejectedConfig> {
        let text = tollgate_config::read_text(&self.path);
        text.map_err(|error| RejectedConfig::from(&error))
    }

    /// Parses `text` like the content of the config file.
    pub(super) fn parse(&self, text: &str) -> Result<Config, RejectedConfig> {
        let config = tollgate_config::load_text(&self.path, text);
        let config = config.map_err(|error| RejectedConfig::from(&error))?;
        (self.finish)(config).map_err(|message| {
            let at = self.path.display().to_string();
            RejectedConfig::because(at, message, None)
        })
    }
}

/// A config that was rejected, with all its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RejectedConfig {
    /// The problems, in the order of the file. Never empty.
    pub problems: Vec<Problem>,
}

/// One problem of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, with line and column if they are known: `rules.yaml:12:7`.
    pub at: String,
    /// The explanation.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

impl From<&ConfigError> for RejectedConfig {
    fn from(error: &ConfigError) -> RejectedConfig {
        let name = error.name();
        let problems = error.problems().iter().map(|problem| Problem {
            at: match problem.position() {
                Some((line, column)) => format!("{name}:{line}:{column}"),
                None => name.to_owned(),
            },
            message: problem.message().to_owned(),
            help: problem.help().map(str::to_owned),
        });
        RejectedConfig {
            problems: problems.collect(),
        }
    }
}

/// Reading the config panicked or was cancelled.
impl From<JoinError> for RejectedConfig {
    fn from(error: JoinError) -> RejectedConfig {
        let message = format!("failed to read the config: {error}");
        RejectedConfig::because("config".to_owned(), message, None)
    }
}

impl RejectedConfig {
    pub(crate) fn because(at: String, message: String, help: Option<String>) -> RejectedConfig {
        let problems = vec![Problem { at, message, help }];
        RejectedConfig { problems }
    }

    /// Describes the first problem, and says where it is.
    pub(crate) fn first(&self) -> String {
        let first = self.problems.first().map(ToString::to_string);
        let mut first = first.unwrap_or_default();
        first.truncate(first.floor_char_boundary(MAX_FIRST));
        first
    }

    /// Logs every problem.
    pub(super) fn log(&self, who: &str) {
        for problem in &self.problems {
            tracing::error!(
                target: "tollgate::config",
                who,
                at = problem.at,
                problem = problem.message,
                help = problem.help,
                "the config was rejected, and the previous one stays in force"
            );
        }
    }
}

impl fmt::Display for RejectedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first())?;
        match self.problems.len() {
            0 | 1 => Ok(()),
            several => write!(f, " (and {} more)", several - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of tenants may change while the server starts, after they were read.
    #[tokio::test]
    async fn tenant_file_that_changes_during_the_start_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(
            "rules.yaml",
            "version: 1\ntenant_files: [one.yaml, more]\nrules: []\n",
        );
        write("one.yaml", "acme: {}\n");
        std::fs::create_dir(folder.path().join("more")).unwrap();
        write("more/two.yaml", "two: {}\n");
        let changes: [&dyn Fn(); 4] = [
            &|| {},
            &|| write("one.yaml", "acme: {}\nother: {}\n"),
            &|| write("more/two.yaml", "two: {}\nthree: {}\n"),
            &|| write("more/four.yaml", "four: {}\n"),
        ];
        for (number, change) in changes.iter().enumerate() {
            let source = Source::new(folder.path().join("rules.yaml"));
            let config = source.parse(&source.text().unwrap()).unwrap();
            change();
            let first = source.first(&config);
            let is_same = first == source.stamps().await;
            assert_eq!(is_same, number == 0, "change {number}");
        }
        // A file that is new when the config is read counts as changed.
        let source = Source::new(folder.path().join("rules.yaml"));
        write("more/five.yaml", "five: {}\n");
        let config = source.parse(&source.text().unwrap()).unwrap();
        assert_ne!(source.first(&config), source.stamps().await);
    }
}
