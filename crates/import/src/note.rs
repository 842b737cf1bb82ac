//! What an imported config does not say exactly as the original does.

use std::fmt;

use tollgate_rules::document::{Place, Problems};

/// One thing that was not carried over exactly, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What became of it.
    pub kind: Kind,
    /// Where the original says it; `None` if it concerns all of it.
    pub position: Option<Position>,
    /// What it is, and why.
    pub message: String,
}

/// What became of something that was not carried over exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A limit that is not in the config.
    LeftOut,
    /// Something that the config does otherwise than the original.
    Differs,
    /// Something that has no effect on what is admitted, here or in both.
    NoEffect,
    /// Carried over as it is, and probably not meant.
    Odd,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The name of the file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1 in characters.
    pub column: usize,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Kind::LeftOut => "left out",
            Kind::Differs => "differs",
            Kind::NoEffect => "no effect",
            Kind::Odd => "odd",
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = &self.position {
            write!(f, "{position}: ")?;
        }
        write!(f, "{}: {}", self.kind.words(), self.message)
    }
}

impl Note {
    /// A note on `place` of `file`, whose problems know where that is.
    pub(crate) fn at(
        kind: Kind,
        file: &str,
        problems: &Problems<'_>,
        place: Place,
        message: impl Into<String>,
    ) -> Note {
        let (line, column) = problems.position(place);
        Note {
            kind,
            position: Some(Position {
                file: file.to_owned(),
                line,
                column,
            }),
            message: message.into(),
        }
    }

    /// A note on the whole.
    pub(crate) fn general(kind: Kind, message: impl Into<String>) -> Note {
        Note {
            kind,
            position: None,
            message: message.into(),
        }
    }
}
