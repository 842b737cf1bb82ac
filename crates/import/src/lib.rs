//! Configs of other rate limiters as configs of Tollgate.
//!
//! Text in, text out: [`envoy_ratelimit`] reads the files of Envoy's rate limit service, and
//! [`limitador`] those of Limitador. Either gives a config that `tollgate_config::parse` accepts, and
//! [`Note`]s on all that the config does not say exactly as the original does. A limit that cannot be
//! said is left out and noted; nothing is widened without being listed. Nothing here knows stores or
//! transports, but for what the gRPC door makes of a descriptor: its entries are attributes, and so is
//! the `domain`.
//!
//! A file that the original would refuse is refused here, with all problems at their places.
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
    /// What errors and notes call it.
    pub name: &'s str,
    /// What it says.
    pub text: &'s str,
}

/// A config made of others'.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The config of Tollgate, with the notes as comments at its top.
    pub yaml: String,
    /// What it does not say exactly as the original does.
    pub notes: Vec<Note>,
    /// How many rules it has.
    pub rules: usize,
}

/// More limits than anybody writes by hand; it bounds what aliases can multiply.
const MAX_LIMITS: usize = 10_000;
