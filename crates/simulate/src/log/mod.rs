//! Access logs: lines of the usual formats become requests with attributes.
//!
//! `time.rs` reads times, `tokens.rs` splits a line, `json.rs` reads lines of JSON, `entry.rs` puts the parts
//! together, `lines.rs` reads lines of bounded length from plain and compressed files, and `replay.rs` merges
//! files by time. Nothing here keeps more than the lines of one second.

mod entry;
mod json;
mod lines;
mod replay;
mod time;
mod tokens;

pub use entry::{Fields, Format};
pub use lines::{Progress, Source};
pub use replay::{BadLine, EachRequest, LogSummary, Replay};
