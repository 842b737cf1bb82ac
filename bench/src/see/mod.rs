//! What it costs to look: the dashboard in Chromium, and what a viewer costs the server ([`dashboard`]); simulations of
//! access logs ([`simulation`]).

mod dashboard;
mod simulation;

use std::error::Error;
use std::path::Path;

use tollgate_bench::report::Report;

use crate::length::Length;

/// Returns the bars that were missed.
pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let mut report = Report::new("see");
    dashboard::measure(length, &mut report)?;
    simulation::measure(length, &mut report)?;
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}
