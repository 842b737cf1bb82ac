//! A cluster of three masters: keys in all cluster slots, and all keys in one cluster slot.

use std::error::Error;
use std::sync::Arc;

use tollgate_bench::report::Report;
use tollgate_bench::table::Table;
use tollgate_core::Limit;
use tollgate_rig::Cluster;

use super::callers::Side;
use super::traffic::{Placement, SUBJECTS, Traffic};
use super::{CALLERS, Effort, middle};

pub(super) fn run(
    limit: &Limit,
    effort: &Effort,
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::start(3, 0);
    let side = Side::new(cluster.nodes())?;
    let mut table = Table::new([
        "gcra",
        "checks/s",
        "Redis CPU, us a check",
        "checks in a call",
    ]);
    for (name, placement) in [
        ("each key in its own cluster slot", Placement::BySubject),
        ("all keys in one cluster slot", Placement::OneSlot),
    ] {
        let traffic = Arc::new(Traffic::single(limit.clone()).placed(placement));
        side.fill(&traffic, SUBJECTS)?;
        let round = |_| side.run(&traffic, CALLERS, effort.round);
        let rounds: Vec<_> = (0..effort.rounds.min(3))
            .map(round)
            .collect::<Result<_, _>>()?;
        table.row([
            name.to_owned(),
            format!("{:.0}", middle(&rounds, |it| it.per_second)),
            format!("{:.2}", middle(&rounds, |it| it.redis_cpu)),
            format!("{:.1}", middle(&rounds, |it| it.batch)),
        ]);
    }
    report.section("A cluster of three masters on the same machine.", &[table]);
    Ok(())
}
