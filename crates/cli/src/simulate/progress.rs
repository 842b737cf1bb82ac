//! The progress of a simulation, on a terminal only.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use tollgate::Span;

/// A bar with the rate and the time that is left; nothing if the standard error is not a terminal.
pub(super) struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar over the bytes of files; without a size it only counts requests.
    pub(super) fn of_bytes(size: Option<u64>) -> Bar {
        match size {
            Some(size) => Bar::new(ProgressBar::new(size), KNOWN),
            None => Bar::new(ProgressBar::no_length(), UNKNOWN),
        }
    }

    /// A bar over the time of described traffic.
    pub(super) fn of_time(length: Span) -> Bar {
        Bar::new(ProgressBar::new(length.as_micros()), KNOWN)
    }

    fn new(bar: ProgressBar, template: &str) -> Bar {
        if !std::io::stderr().is_terminal() {
            return Bar(None);
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Bar(Some(bar))
    }

    /// Shows how far the simulation is.
    pub(super) fn at(&self, position: u64, requests: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(position);
            let seconds = bar.elapsed().as_secs_f64().max(0.001);
            bar.set_message(format!(
                "{requests} requests, {:.0} a second",
                requests as f64 / seconds
            ));
        }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

const KNOWN: &str = "[{bar:30}] {percent}%  {msg}, {eta} left";
const UNKNOWN: &str = "{spinner} {msg}";
