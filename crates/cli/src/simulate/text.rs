//! The report of a simulation as tables for a terminal.

use std::fmt::Write as _;

use tollgate::{Span, wait_in_words};
use tollgate_simulate::report::{Counts, Report, Row, RuleFigures, utc as time};

use crate::terminal::table;

/// The rows of each table. The report as JSON and the page have more.
const SHOWN: usize = 10;
const HOURS: usize = 24;

pub(super) fn text(report: &Report) -> String {
    let side = &report.new;
    let of = |part: u64| percent(part, report.requests);
    let mut text = format!(
        "{} requests, {} to {}\n",
        report.requests,
        time(report.first),
        time(report.last)
    );
    let _ = writeln!(
        text,
        "allowed {} ({}), denied {} ({})",
        side.allowed,
        of(side.allowed),
        side.denied,
        of(side.denied)
    );
    if side.shadow_denied > 0 {
        let _ = writeln!(
            text,
            "denied in shadow {} ({})",
            side.shadow_denied,
            of(side.shadow_denied)
        );
    }
    if side.without_rule > 0 {
        let _ = writeln!(
            text,
            "no rule applies to {} ({})",
            side.without_rule,
            of(side.without_rule)
        );
    }
    if let Some(changes) = report.changes {
        let (more, less) = (changes.newly_denied, changes.newly_allowed);
        let _ = writeln!(
            text,
            "newly denied {more} ({}), newly allowed {less} ({}), denied as before {}",
            of(more),
            of(less),
            changes.still_denied
        );
    }
    log(report, &mut text);
    text.push('\n');
    text += &rules(report);
    for (heading, rows) in [("plan", &side.plans), ("tenant", &side.tenants)] {
        text += &rows_of(heading, rows, SHOWN);
    }
    for rule in &side.rules {
        text += &rows_of(&format!("subject of {}", rule.id), &rule.most_denied, SHOWN);
    }
    text += &hours(report);
    let calls = side.store_calls;
    let _ = writeln!(
        text,
        "\nstore calls: exact {}, with known denials {}, leased at least {}, async at least {}",
        calls.exact, calls.with_denial_cache, calls.leased, calls.flushed
    );
    let _ = writeln!(text, "states at once: {}", side.peak_keys);
    if side.denied > side.never {
        let wait = wait_in_words(Span::from_millis(side.longest_wait_millis));
        let _ = writeln!(text, "longest wait of a denied request: {wait}");
    }
    text
}

fn log(report: &Report, text: &mut String) {
    let Some(log) = &report.log else { return };
    if log.malformed > 0 {
        let _ = writeln!(text, "{} could not be read:", lines(log.malformed));
        for place in &log.first_malformed {
            let _ = writeln!(text, "  {place}");
        }
    }
    if log.out_of_order > 0 {
        let back = wait_in_words(Span::from_millis(log.furthest_back_millis));
        let _ = writeln!(
            text,
            "{} up to {back} before an earlier line, with the time of that line",
            lines(log.out_of_order)
        );
    }
}

fn lines(count: u64) -> String {
    format!("{count} line{}", if count == 1 { "" } else { "s" })
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", part as f64 / whole.max(1) as f64 * 100.0)
}

fn rules(report: &Report) -> String {
    let before = |rule: &RuleFigures| {
        let old = report
            .old
            .as_ref()?
            .rules
            .iter()
            .find(|it| it.id == rule.id);
        Some(old.map_or("-".to_owned(), |it| it.denied.to_string()))
    };
    let rows = report.new.rules.iter().map(|rule| {
        let more = if rule.requests_of_other_subjects > 0 {
            ">"
        } else {
            ""
        };
        [
            rule.id.clone() + if rule.is_shadow { " (shadow)" } else { "" },
            rule.algorithm.to_owned(),
            rule.allowed.to_string(),
            rule.denied.to_string(),
            percent(rule.denied, rule.allowed + rule.denied),
            before(rule).unwrap_or_default(),
            format!("{more}{}", rule.subjects),
            rule.largest_burst.map_or("-".to_owned(), |burst| {
                let window = Span::from_millis(burst.window_millis);
                format!("{} of {} in {window}", burst.admitted, burst.limit)
            }),
        ]
    });
    let rows: Vec<[String; 8]> = rows.collect();
    let before = if report.old.is_some() { "before" } else { "" };
    table(
        [
            ("rule", false),
            ("algorithm", false),
            ("allowed", true),
            ("denied", true),
            ("share", true),
            (before, true),
            ("subjects", true),
            ("largest burst", false),
        ],
        &rows,
    )
}

fn rows_of(heading: &str, rows: &[Row], most: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let has_old = rows.iter().any(|row| row.old.is_some());
    let shown = rows.iter().take(most).map(|row| {
        let old = row
            .old
            .map(|old| (old.denied.to_string(), change(row.counts, old)));
        let (before, change) = old.unwrap_or_default();
        [
            row.name.clone(),
            row.counts.allowed.to_string(),
            row.counts.denied.to_string(),
            before,
            change,
        ]
    });
    let shown: Vec<[String; 5]> = shown.collect();
    let (before, change) = if has_old {
        ("before", "change")
    } else {
        ("", "")
    };
    let columns = [
        ("", false),
        ("allowed", true),
        ("denied", true),
        (before, true),
        (change, true),
    ];
    format!("\n{heading}\n{}", table(columns, &shown))
}

fn change(now: Counts, before: Counts) -> String {
    let sign = if now.denied >= before.denied {
        "+"
    } else {
        "-"
    };
    format!("{sign}{}", now.denied.abs_diff(before.denied))
}

/// Writes the hours with denials.
fn hours(report: &Report) -> String {
    let old = |hour: u64| {
        let old = report.old.as_ref()?;
        let found = old.hours.iter().find(|(it, _)| *it == hour);
        Some(found.map(|(_, counts)| *counts).unwrap_or_default())
    };
    let rows = report.new.hours.iter().map(|(hour, counts)| Row {
        name: time(*hour),
        counts: *counts,
        old: old(*hour),
    });
    let is_denied = |row: &Row| row.counts.denied + row.old.map_or(0, |old| old.denied) > 0;
    let rows: Vec<Row> = rows.filter(is_denied).collect();
    rows_of("hour", &rows, HOURS)
}
