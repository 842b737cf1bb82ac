//! The Lua script, put together from its files.
//!
//! Every call runs a script from its first line. So a script has only the algorithms that the call needs, and
//! starts with the code that most calls need. There is one script for each set of algorithms; most calls need
//! one algorithm.

use std::fmt::Write;
use std::sync::OnceLock;

use tollgate_core::Limit;

use crate::request::Operation;

const BACKOFF: &str = include_str!("../lua/backoff.lua");
const CONCURRENCY: &str = include_str!("../lua/concurrency.lua");
const FAIR: &str = include_str!("../lua/fair.lua");
const FAIR_PLAIN: &str = include_str!("../lua/fair_plain.lua");
const FIXED_WINDOW: &str = include_str!("../lua/fixed_window.lua");
const FIXED_WINDOW_COLUMN: &str = include_str!("../lua/fixed_window_column.lua");
const FRAME: &str = include_str!("../lua/frame.lua");
const GENERAL: &str = include_str!("../lua/general.lua");
const LEAKY_BUCKET: &str = include_str!("../lua/leaky_bucket.lua");
const METER: &str = include_str!("../lua/meter.lua");
const METER_COLUMN: &str = include_str!("../lua/meter_column.lua");
const MIXED: &str = include_str!("../lua/mixed.lua");
const QUOTA: &str = include_str!("../lua/quota.lua");
const SLIDING_COUNTER: &str = include_str!("../lua/sliding_counter.lua");
const SLIDING_LOG: &str = include_str!("../lua/sliding_log.lua");
const TWO_WINDOW: &str = include_str!("../lua/two_window.lua");
const STATES: &str = include_str!("../lua/states.lua");
const DECIDE: &str = include_str!("../lua/decide.lua");
const REQUESTS: &str = include_str!("../lua/requests.lua");
const RUNS: &str = include_str!("../lua/runs.lua");
const RUN: &str = include_str!("../lua/run.lua");
const HOLDS: &str = include_str!("../lua/holds.lua");
const HOLD: &str = include_str!("../lua/hold.lua");
const HOLD_DECIDE: &str = include_str!("../lua/hold_decide.lua");
const HOLD_FIND: &str = include_str!("../lua/hold_find.lua");
const REPORT: &str = include_str!("../lua/report.lua");
const SETTLE: &str = include_str!("../lua/settle.lua");
const EXTEND: &str = include_str!("../lua/extend.lua");
const RECORDS: &str = include_str!("../lua/records.lua");

/// The line of `runs.lua` that the code of a column replaces.
const COLUMN: &str = "      -- The column.\n";

/// The end of the function that `general.lua` begins.
const END: &str = "end)()\n";

/// The algorithms of the script. Limits of one family have the same kind of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Family {
    Meter = 1,
    LeakyBucket = 2,
    FixedWindow = 3,
    SlidingCounter = 4,
    TwoWindow = 5,
    SlidingLog = 6,
    Backoff = 7,
    Quota = 8,
    Concurrency = 9,
    Fair = 10,
}

impl Family {
    const ALL: [Family; 10] = [
        Family::Meter,
        Family::LeakyBucket,
        Family::FixedWindow,
        Family::SlidingCounter,
        Family::TwoWindow,
        Family::SlidingLog,
        Family::Backoff,
        Family::Quota,
        Family::Concurrency,
        Family::Fair,
    ];

    /// Returns the family of a limit; `None` if it is unlimited.
    pub(crate) fn of(limit: &Limit) -> Option<Family> {
        match limit {
            Limit::FixedWindow(_) => Some(Family::FixedWindow),
            Limit::SlidingLog(_) => Some(Family::SlidingLog),
            Limit::SlidingCounter(_) => Some(Family::SlidingCounter),
            Limit::TwoWindow(_) => Some(Family::TwoWindow),
            Limit::TokenBucket(_) | Limit::Gcra(_) => Some(Family::Meter),
            Limit::LeakyBucket(_) => Some(Family::LeakyBucket),
            Limit::Backoff(_) => Some(Family::Backoff),
            Limit::Quota(_) => Some(Family::Quota),
            Limit::Concurrency(_) => Some(Family::Concurrency),
            Limit::Fair(_) => Some(Family::Fair),
            Limit::Unlimited(_) => None,
        }
    }

    /// Returns the letter at the end of the keys of this family. Because of this letter, a rule with a new
    /// algorithm uses other keys and does not read the old states.
    pub(crate) fn letter(self) -> u8 {
        self.facts().0
    }

    /// Whether states of this family are read whole. Logs may be long, and slots are a sorted set: neither is
    /// read whole.
    pub(crate) fn is_whole(self) -> bool {
        !matches!(self, Family::SlidingLog | Family::Concurrency)
    }

    /// Returns the Lua function for the amount left of a limit, below zero if it is overdrawn: `Limiting::level`.
    fn level(self) -> &'static str {
        match self {
            Family::Meter | Family::LeakyBucket => {
                "local function level(k, n)\n  \
                   return div(n.full - math.min(missing_at(k, n, n.here), 2 ^ 53 - 1), n.token)\n\
                 end\n"
            }
            Family::FixedWindow => {
                "local function level(k, n)\n  \
                   local _, spent = current(k, n.ending)\n  \
                   return n.limit - spent\n\
                 end\n"
            }
            Family::SlidingCounter => {
                "local function level(k, n)\n  \
                   local first = first_live(k, running_at(k, n.length), n.buckets)\n  \
                   return n.limit - sum_from(counts[k], first)\n\
                 end\n"
            }
            Family::TwoWindow => {
                "local function level(k, n)\n  \
                   local _, counted, previous, share = current(k, n.tick, n.window)\n  \
                   return n.limit - estimate(counted, previous, share, n.window)\n\
                 end\n"
            }
            Family::SlidingLog => {
                "local function level(k, n)\n  \
                   local _, left = live(k, n.window)\n  \
                   return n.limit - last_sum(k) + left\n\
                 end\n"
            }
            Family::Quota => {
                "local function level(k, n)\n  \
                   local _, spent, more = current(k, n, n)\n  \
                   return (n.closed and 0 or n.capacity + more) - spent\n\
                 end\n"
            }
            Family::Fair => "local level = fair.level\n",
            // Without an amount, nothing is reported.
            Family::Backoff | Family::Concurrency => "local function level() return 0 end\n",
        }
    }

    /// Returns the letter of the family's keys, its name in metrics, and its files.
    fn facts(self) -> (u8, &'static str, &'static [&'static str]) {
        match self {
            Family::Meter => (b'm', "meter", &[METER]),
            Family::LeakyBucket => (b'b', "leaky-bucket", &[METER, LEAKY_BUCKET]),
            Family::FixedWindow => (b'f', "fixed-window", &[FIXED_WINDOW]),
            Family::SlidingCounter => (b'c', "sliding-counter", &[SLIDING_COUNTER]),
            Family::TwoWindow => (b'w', "two-window", &[TWO_WINDOW]),
            Family::SlidingLog => (b'l', "sliding-log", &[SLIDING_LOG]),
            Family::Backoff => (b'o', "backoff", &[BACKOFF]),
            Family::Quota => (b'q', "quota", &[QUOTA]),
            Family::Concurrency => (b's', "concurrency", &[CONCURRENCY]),
            Family::Fair => (b'p', "fair", &[FAIR]),
        }
    }
}

/// A set of families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Families(u16);

impl FromIterator<Family> for Families {
    fn from_iter<I: IntoIterator<Item = Family>>(all: I) -> Families {
        Families(
            all.into_iter()
                .fold(0, |set, family| set | 1 << (family as u8 - 1)),
        )
    }
}

impl Families {
    fn iter(self) -> impl Iterator<Item = Family> {
        Family::ALL
            .into_iter()
            .filter(move |family| self.0 & (1 << (*family as u8 - 1)) != 0)
    }

    /// Returns the family if there is only one.
    fn only(self) -> Option<Family> {
        let mut families = self.iter();
        let first = families.next();
        first.filter(|_| families.next().is_none())
    }
}

/// A script, and the hash by which a server finds it.
#[derive(Debug)]
pub(crate) struct Script {
    /// The name in metrics: its algorithm, `mixed` or `holds`.
    pub(crate) name: &'static str,
    pub(crate) source: String,
    pub(crate) sha: String,
}

impl Script {
    /// Returns the script for calls that need these families.
    pub(crate) fn of(families: Families) -> &'static Script {
        static SCRIPTS: [OnceLock<Script>; 1 << Family::ALL.len()] =
            [const { OnceLock::new() }; 1 << Family::ALL.len()];
        SCRIPTS[usize::from(families.0)].get_or_init(|| {
            let name = families.only().map_or("mixed", |it| it.facts().1);
            let (runs, algorithms) = (runs(families), algorithms(families));
            let common = [FRAME, &runs, GENERAL, &algorithms, STATES];
            Script::new(
                name,
                common.concat() + &[DECIDE, REQUESTS, RUN, END].concat(),
            )
        })
    }

    /// Returns the script that reports usage of a limit of one family.
    pub(crate) fn of_reports(families: Families) -> &'static Script {
        static SCRIPTS: [OnceLock<Script>; Family::ALL.len()] =
            [const { OnceLock::new() }; Family::ALL.len()];
        // A report has one charge.
        let family = families.only().unwrap_or(Family::Meter);
        SCRIPTS[family as usize - 1].get_or_init(|| {
            let algorithm = family.facts().2.concat();
            let common = [FRAME, GENERAL, &algorithm, STATES, DECIDE, family.level()];
            Script::new("report", common.concat() + REPORT + END)
        })
    }

    /// Returns the script that makes, settles or extends holds with these families.
    pub(crate) fn of_holds(families: Families, operation: Operation) -> &'static Script {
        static SCRIPTS: [[OnceLock<Script>; 1 << Family::ALL.len()]; 3] =
            [const { [const { OnceLock::new() }; 1 << Family::ALL.len()] }; 3];
        let (index, parts): (usize, &[&str]) = match operation {
            Operation::Hold => (0, &[HOLD, DECIDE, HOLD_DECIDE]),
            Operation::Extend => (1, &[HOLD_FIND, EXTEND]),
            _ => (2, &[HOLD_FIND, SETTLE]),
        };
        SCRIPTS[index][usize::from(families.0)].get_or_init(|| {
            let common = [FRAME, GENERAL, &algorithms(families), STATES, HOLDS];
            Script::new("holds", common.concat() + &parts.concat() + END)
        })
    }

    /// Returns the script that reads and lists records of holds.
    pub(crate) fn of_records() -> &'static Script {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        SCRIPT.get_or_init(|| Script::new("holds", RECORDS.to_owned()))
    }

    fn new(name: &'static str, source: String) -> Script {
        let sha = sha1_smol::Sha1::from(&source).digest().to_string();
        Script { name, source, sha }
    }

    /// Returns the scripts to load before the first call: those with one algorithm. Back-off is left out,
    /// because a request never has only a back-off.
    pub(crate) fn common() -> impl Iterator<Item = &'static Script> {
        let alone = |family| Script::of(Families::from_iter([family]));
        let common = |family: &Family| *family != Family::Backoff;
        Family::ALL.into_iter().filter(common).map(alone)
    }
}

/// Returns the fast path of a script: for runs, or for fair buckets; "" if the families have none.
fn runs(families: Families) -> String {
    if families.only() == Some(Family::Fair) {
        return FAIR_PLAIN.to_owned();
    }
    let (mut has_meter, mut has_window) = (false, false);
    for family in families.iter() {
        match family {
            Family::Meter | Family::LeakyBucket => has_meter = true,
            Family::FixedWindow => has_window = true,
            _ => return String::new(),
        }
    }
    let column = match (has_meter, has_window) {
        // The byte at the start of a limit is its family.
        (true, true) => format!(
            "if string.byte(plan, l) == {} then\n{FIXED_WINDOW_COLUMN}else\n{METER_COLUMN}end\n",
            Family::FixedWindow as u8
        ),
        (true, false) => METER_COLUMN.to_owned(),
        _ => FIXED_WINDOW_COLUMN.to_owned(),
    };
    RUNS.replace(COLUMN, &column)
}

/// Returns the algorithms of a script: one, or several with a dispatch between them.
fn algorithms(families: Families) -> String {
    if let Some(only) = families.only() {
        return only.facts().2.concat();
    }
    let mut text = String::from("local algorithms = {}\n");
    for family in families.iter() {
        let functions = [
            "read", "load", "adopt", "decide", "charge", "overdraw", "refund", "expires", "store",
        ];
        let functions = functions.map(|name| format!("{name} = {name}")).join(", ");
        let _ = writeln!(
            text,
            "do\n{}algorithms[{}] = {{ {functions} }}\nend",
            family.facts().2.concat(),
            family as u8,
        );
    }
    text + MIXED
}

#[cfg(test)]
mod tests {
    use tollgate_store::MAX_TTL;

    use super::*;
    use crate::holds::ABANDONED;

    #[test]
    fn runs_have_one_place_for_the_column() {
        assert_eq!(RUNS.matches(COLUMN).count(), 1);
    }

    #[test]
    fn the_index_outlives_the_longest_hold() {
        let kept = MAX_TTL.as_millis_ceil() + ABANDONED.as_millis_ceil();
        let line = format!("local INDEX_KEPT = '{kept}'\n");
        assert!(HOLDS.contains(&line), "{line}");
    }
}
