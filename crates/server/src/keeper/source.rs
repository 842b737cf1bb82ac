//! The file that a config comes from.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::{Config, ConfigError};

/// A longer message is cut in entries of the audit trail and in `/readyz`.
const MAX_FIRST: usize = 500;

/// Where a config comes from: a file, and what is said over it elsewhere, as by flags.
pub struct Source {
    path: Arc<Path>,
    finish: Finish,
    /// What else the config was read from, or refused for: files of tenants, and the directories that
    /// hold them.
    others: Mutex<Vec<PathBuf>>,
    /// What the file was like before anybody read it.
    first: Stamps,
}

type Finish = Box<dyn Fn(Config) -> Result<Config, String> + Send + Sync>;

/// Tells a file from what it was: another file, another size, another time.
///
/// Links are followed, so that one that points elsewhere is another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// The config file, and what else it was read from; `None` for one that is not there.
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
    /// The file at `path`. To be made before the file is read for the first time, so that no change
    /// goes unseen.
    #[must_use]
    pub fn new(path: PathBuf) -> Source {
        Source {
            first: vec![Stamp::of(&path)],
            others: Mutex::default(),
            path: path.into(),
            finish: Box::new(Ok),
        }
    }

    /// The same with what is said over the file, each time it is read.
    #[must_use]
    pub fn finished_by(
        mut self,
        finish: impl Fn(Config) -> Result<Config, String> + Send + Sync + 'static,
    ) -> Source {
        self.finish = Box::new(finish);
        self
    }

    /// What the files were like before anybody read them.
    pub(super) fn first(&self, config: &Config) -> Stamps {
        let files = config.tenant_files().iter();
        let all = files.chain(config.tenant_directories());
        let mut others = self.others.lock();
        *others = all.cloned().collect();
        let others = others.iter().map(|path| Stamp::of(path));
        self.first.iter().copied().chain(others).collect()
    }

    /// What the files are like that it would be read from now, also if it would be refused: what is put
    /// right in one of them is seen then.
    pub(super) async fn stamps_anew(self: &Arc<Self>) -> Stamps {
        let source = Arc::clone(self);
        let looking = tokio::task::spawn_blocking(move || {
            // Before it is looked what it names: if it changes meanwhile, that is seen the next time.
            let own = Stamp::of(&source.path);
            let others = tollgate_config::tenant_paths(&source.path);
            let stamps = others.iter().map(|path| Stamp::of(path));
            let stamps = std::iter::once(own).chain(stamps).collect();
            *source.others.lock() = others;
            stamps
        });
        looking.await.unwrap_or_default()
    }

    /// What the files are like.
    pub(super) async fn stamps(&self) -> Stamps {
        let (path, others) = (Arc::clone(&self.path), self.others.lock().clone());
        let looking = tokio::task::spawn_blocking(move || {
            let others = others.iter().map(|path| Stamp::of(path));
            std::iter::once(Stamp::of(&path)).chain(others).collect()
        });
        looking.await.unwrap_or_default()
    }

    /// The config, read now.
    pub(super) fn load(&self) -> Result<Config, Refused> {
        let config = tollgate_config::load(&self.path).map_err(|error| Refused::from(&error))?;
        (self.finish)(config).map_err(|message| {
            let at = self.path.display().to_string();
            Refused::because(Problem {
                at,
                message,
                help: None,
            })
        })
    }
}

/// A config that is not right: all that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// In the order of the file. Never empty.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, with line and column where they are known: `rules.yaml:12:7`.
    pub at: String,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub help: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

impl From<&ConfigError> for Refused {
    fn from(error: &ConfigError) -> Refused {
        let name = error.name();
        let problems = error.problems().iter().map(|problem| Problem {
            at: match problem.position() {
                Some((line, column)) => format!("{name}:{line}:{column}"),
                None => name.to_owned(),
            },
            message: problem.message().to_owned(),
            help: problem.help().map(str::to_owned),
        });
        Refused {
            problems: problems.collect(),
        }
    }
}

impl Refused {
    pub(crate) fn because(problem: Problem) -> Refused {
        Refused {
            problems: vec![problem],
        }
    }

    /// A config whose reading did not come to an end.
    pub(super) fn unreadable(error: &tokio::task::JoinError) -> Refused {
        Refused::because(Problem {
            at: "config".to_owned(),
            message: format!("reading it did not come to an end: {error}"),
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

    /// Tells whoever reads the log of every problem.
    pub(super) fn log(&self, who: &str) {
        for problem in &self.problems {
            tracing::error!(
                target: "tollgate::config",
                who,
                at = problem.at,
                problem = problem.message,
                help = problem.help,
                "the config is refused, and the one before stays in force"
            );
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first())?;
        match self.problems.len() {
            0 | 1 => Ok(()),
            several => write!(f, " (and {} more)", several - 1),
        }
    }
}
