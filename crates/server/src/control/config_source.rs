//! The file that a config comes from.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::{Config, ConfigError};

/// A longer message is cut in the audit trail and in `/readyz`.
const MAX_FIRST: usize = 500;

/// Where a config comes from: a file, and settings that override the file, such as flags.
pub struct Source {
    path: Arc<Path>,
    finish: Finish,
    /// The other files that the config depends on: files of tenants, and their directories.
    others: Mutex<Vec<PathBuf>>,
    /// The state of the file before it was first read.
    first: Stamps,
}

type Finish = Box<dyn Fn(Config) -> Result<Config, String> + Send + Sync>;

/// Identifies one version of a file, by inode, size and time.
///
/// Links are followed: a link that points to another file makes another stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// The stamps of the config file and of the other files; `None` for a missing file.
pub(super) type Stamps = Vec<Option<Stamp>>;

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let file = std::fs::metadata(path).ok()?;
        Some(Stamp {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

impl Source {
    /// Takes the config from the file at `path`. Create the source before the file is first read,
    /// so that no change is missed.
    #[must_use]
    pub fn new(path: PathBuf) -> Source {
        Source {
            first: vec![Stamp::of(&path)],
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

    /// The stamps of the files before they were first read.
    pub(super) fn first(&self, config: &Config) -> Stamps {
        let files = config.tenant_files().iter();
        let all = files.chain(config.tenant_directories());
        let mut others = self.others.lock();
        *others = all.cloned().collect();
        let others = others.iter().map(|path| Stamp::of(path));
        self.first.iter().copied().chain(others).collect()
    }

    /// The stamps of all files that a config read now depends on, even if it would be rejected. So
    /// a fix in any of them is seen.
    pub(super) async fn stamps_anew(self: &Arc<Self>) -> Stamps {
        let source = Arc::clone(self);
        let looking = tokio::task::spawn_blocking(move || {
            // Taken before the names of the other files are read, so that a change in between is
            // seen the next time.
            let own = Stamp::of(&source.path);
            let others = tollgate_config::tenant_paths(&source.path);
            let stamps = others.iter().map(|path| Stamp::of(path));
            let stamps = std::iter::once(own).chain(stamps).collect();
            *source.others.lock() = others;
            stamps
        });
        looking.await.unwrap_or_default()
    }

    /// The current stamps of the files.
    pub(super) async fn stamps(&self) -> Stamps {
        let (path, others) = (Arc::clone(&self.path), self.others.lock().clone());
        let looking = tokio::task::spawn_blocking(move || {
            let others = others.iter().map(|path| Stamp::of(path));
            std::iter::once(Stamp::of(&path)).chain(others).collect()
        });
        looking.await.unwrap_or_default()
    }

    /// Reads the config now.
    pub(super) fn load(&self) -> Result<Config, RejectedConfig> {
        let config =
            tollgate_config::load(&self.path).map_err(|error| RejectedConfig::from(&error))?;
        (self.finish)(config).map_err(|message| {
            let at = self.path.display().to_string();
            RejectedConfig::because(Problem {
                at,
                message,
                help: None,
            })
        })
    }
}

/// A config that was rejected, with all its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RejectedConfig {
    /// In the order of the file. Never empty.
    pub problems: Vec<Problem>,
}

/// One problem of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, with line and column if they are known: `rules.yaml:12:7`.
    pub at: String,
    /// What is wrong.
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

impl RejectedConfig {
    pub(crate) fn because(problem: Problem) -> RejectedConfig {
        RejectedConfig {
            problems: vec![problem],
        }
    }

    /// A config whose reading panicked or was cancelled.
    pub(super) fn unreadable(error: &tokio::task::JoinError) -> RejectedConfig {
        RejectedConfig::because(Problem {
            at: "config".to_owned(),
            message: format!("failed to read the config: {error}"),
            help: None,
        })
    }

    /// The first problem, and where it is.
    pub(crate) fn first(&self) -> String {
        let mut first = self.problems.first().map(ToString::to_string);
        let first = first.get_or_insert_default();
        first.truncate(first.floor_char_boundary(MAX_FIRST));
        std::mem::take(first)
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
