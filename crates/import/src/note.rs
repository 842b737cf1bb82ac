//! Notes on the differences between an imported config and its original.

use std::fmt;

use tollgate_rules::document::{Place, Problems};

/// The note on limits that count by the attribute `ip`.
pub(crate) const ADDRESS: &str = "`ip` is read as an address: IPv6 clients are limited by their \
    /64. To limit single addresses, add `subjects: { ipv6_prefix: 128 }`";

/// A part of the original that was not converted exactly, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The meaning of the difference.
    pub kind: Kind,
    /// The place in the original; `None` for a note on the whole file.
    pub position: Option<Position>,
    /// The explanation.
    pub message: String,
}

/// The meaning of a difference from the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A limit is missing in the config.
    LeftOut,
    /// The config behaves differently from the original.
    Differs,
    /// The part has no effect on decisions, either in Tollgate only or in both programs.
    NoEffect,
    /// Converted exactly, but probably a mistake in the original.
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
        let kind = match self.kind {
            Kind::LeftOut => "left out",
            Kind::Differs => "differs",
            Kind::NoEffect => "no effect",
            Kind::Odd => "odd",
        };
        write!(f, "{kind}: {}", self.message)
    }
}

impl Note {
    /// Makes a note on a place of `file`. `problems` turns the place into line and column.
    pub(crate) fn at(
        kind: Kind,
        file: &str,
        problems: &Problems<'_>,
        place: Place,
        message: impl Into<String>,
    ) -> Note {
        let (line, column) = problems.position(place);
        let file = file.to_owned();
        Note {
            kind,
            position: Some(Position { file, line, column }),
            message: message.into(),
        }
    }

    /// Makes a note on the whole file.
    pub(crate) fn general(kind: Kind, message: impl Into<String>) -> Note {
        Note {
            kind,
            position: None,
            message: message.into(),
        }
    }
}
