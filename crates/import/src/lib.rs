//! Converts configs of other rate limiters into Tollgate configs.
//!
//! Text goes in and text comes out: [`envoy_ratelimit`] reads the files of Envoy's rate limit service,
//! and [`limitador`] reads the files of Limitador. Both return a config that `tollgate_config::parse`
//! accepts, and a [`Note`] for each part that behaves differently. A limit that Tollgate cannot express
//! is left out, with a note. No limit becomes wider without a note.
//!
//! This crate knows nothing of stores or servers. It only knows how the gRPC door reads a descriptor: each
//! entry becomes an attribute, and so does the `domain`.
//!
//! A file that the original rejects is rejected here too, with the place of each problem.
//!
//! ```
//! use tollgate_import::{Domains, Source, envoy_ratelimit};
//!
//! let text = "
//! domain: mail
//! descriptors:
//! - key: recipient
//!   rate_limit: { unit: day, requests_per_unit: 100 }
//! ";
//! let imported = envoy_ratelimit(&[Source { name: "mail.yaml", text }], Domains::Once).unwrap();
//! assert_eq!(imported.rules, 1);
//! assert!(imported.notes.is_empty());
//! assert!(imported.yaml.contains("per: [recipient]"));
//! ```

mod emit;
mod envoy;
mod ids;
mod limitador;
mod note;
mod read;
mod write;

pub use envoy::{Domains, envoy_ratelimit};
pub use limitador::limitador;
pub use note::{Kind, Note, Position};

/// A file to import.
#[derive(Clone, Copy, Debug)]
pub struct Source<'s> {
    /// The name of the file in errors and notes.
    pub name: &'s str,
    /// The content of the file.
    pub text: &'s str,
}

/// A converted config.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The config of Tollgate, with the notes as comments at its top.
    pub yaml: String,
    /// The differences from the original.
    pub notes: Vec<Note>,
    /// How many rules the config has.
    pub rules: usize,
}

/// The most limits of a file. Aliases in YAML could multiply a small file into millions of limits.
const MAX_LIMITS: usize = 10_000;
