//! The report as one page: no script, no request to anywhere, dark and light.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::svg::{Bar, Curve, bars, curves, escaped, short};
use super::{Report, Row, RuleFigures, SideFigures, utc as time};
use crate::number::share;

const STYLE: &str = include_str!("page.css");
/// The rows of a table of hours.
const MOST_HOURS: usize = 48;

/// Writes a report as a page.
#[must_use]
pub fn html(report: &Report, title: &str) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{0}</title><style>{STYLE}</style></head><body><main><h1>{0}</h1>",
        escaped(title)
    );
    page += &summary(report);
    page += &over_time(report);
    page += &rules(report);
    page += &bursts(&report.new);
    page += &fairness(&report.new);
    page += &waits(report);
    page += &memory(&report.new);
    page += &calls(&report.new);
    page += &tables(report);
    page + "</main></body></html>\n"
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", share(part, whole) * 100.0)
}

fn section(heading: &str, text: &str, content: &str) -> String {
    format!("<section><h2>{heading}</h2><p>{text}</p>{content}</section>")
}

fn summary(report: &Report) -> String {
    let side = &report.new;
    let mut cards = vec![
        ("requests", short(report.requests as f64), String::new()),
        (
            "allowed",
            short(side.allowed as f64),
            percent(side.allowed, report.requests),
        ),
        (
            "denied",
            short(side.denied as f64),
            percent(side.denied, report.requests),
        ),
    ];
    if side.shadow_denied > 0 {
        let of = percent(side.shadow_denied, report.requests);
        cards.push(("denied in shadow", short(side.shadow_denied as f64), of));
    }
    if let Some(changes) = report.changes {
        let of = |part| percent(part, report.requests);
        let (more, less) = (changes.newly_denied, changes.newly_allowed);
        cards.push(("newly denied", short(more as f64), of(more)));
        cards.push(("newly allowed", short(less as f64), of(less)));
    }
    let cards = cards.iter().map(|(name, number, note)| {
        format!("<div class=\"card\"><b>{number}</b><span>{name}</span><i>{note}</i></div>")
    });
    let cards: String = cards.collect();
    let mut text = format!(
        "<p>{} to {}. Rules version {}",
        time(report.first),
        time(report.last),
        escaped(&side.version)
    );
    if let Some(old) = &report.old {
        let _ = write!(text, ", compared with version {}", escaped(&old.version));
    }
    text += ".</p>";
    if let Some(log) = &report.log {
        if log.malformed > 0 {
            let places: String = log
                .first_malformed
                .iter()
                .map(|place| format!("<li>{}</li>", escaped(place)))
                .collect();
            let _ = write!(
                text,
                "<p class=\"warn\">{} lines of the log could not be read. The first ones:</p><ul>{places}</ul>",
                log.malformed
            );
        }
        if log.out_of_order > 0 {
            let _ = write!(
                text,
                "<p class=\"warn\">{} lines of the log have a time up to {} before that of an earlier line. They got the time of that line.</p>",
                log.out_of_order,
                wait(log.furthest_back_millis)
            );
        }
        if log.spread_over_seconds {
            text += "<p>The log has times in whole seconds, so the requests of each second were spread evenly over it.</p>";
        }
    }
    format!("{text}<div class=\"cards\">{cards}</div>")
}

/// Returns ticks of the axis of time.
fn ticks(side: &SideFigures, first: u64) -> Vec<(f64, String)> {
    let count = side.series.len();
    let length = side.bucket_micros * count as u64;
    let form = if length > 2 * 86_400_000_000 {
        "%b %d"
    } else {
        "%H:%M:%S"
    };
    let places = (1..5_u64).map(|part| {
        let place = count as u64 * part / 5;
        let micros = first + place * side.bucket_micros;
        let time = i64::try_from(micros).ok();
        let time = time.and_then(|it| Timestamp::from_microsecond(it).ok());
        let text = time.map(|it| it.strftime(form).to_string());
        (place as f64, text.unwrap_or_default())
    });
    places.collect()
}

fn per_second(side: &SideFigures, of: impl Fn(&super::Bucket) -> u64) -> Vec<(f64, f64)> {
    let seconds = side.bucket_micros as f64 / 1e6;
    let points = side.series.iter().enumerate();
    points
        .map(|(place, bucket)| (place as f64, of(bucket) as f64 / seconds))
        .collect()
}

fn over_time(report: &Report) -> String {
    let side = &report.new;
    let mut lines = vec![
        Curve {
            class: "denied",
            label: "denied",
            points: per_second(side, |it| it.allowed + it.denied),
            is_area: true,
        },
        Curve {
            class: "allowed",
            label: "allowed",
            points: per_second(side, |it| it.allowed),
            is_area: true,
        },
    ];
    if side.shadow_denied > 0 {
        lines.push(Curve {
            class: "shadow",
            label: "denied in shadow",
            points: per_second(side, |it| it.shadow_denied),
            is_area: false,
        });
    }
    if let Some(old) = &report.old {
        lines.push(Curve {
            class: "old",
            label: "allowed by the old rules",
            points: per_second(old, |it| it.allowed),
            is_area: false,
        });
    }
    let plot = curves(
        "Requests per second, allowed and denied",
        &lines,
        &ticks(side, report.first),
    );
    let seconds = side.bucket_micros / 1_000_000;
    let text = format!("Requests per second, as the mean of {seconds} s.");
    section("Allowed and denied over time", &text, &plot)
}

fn rules(report: &Report) -> String {
    let largest = |rule: &RuleFigures| match rule.largest_burst {
        Some(burst) => {
            let window = tollgate::Span::from_millis(burst.window_millis);
            format!("{} of {} in {window}", burst.admitted, burst.limit)
        }
        None => "-".to_owned(),
    };
    let rows = report.new.rules.iter().map(|rule| {
        let old = report.old.as_ref().map(|old| {
            let old = old.rules.iter().find(|it| it.id == rule.id);
            let denied = old.map_or("-".to_owned(), |it| it.denied.to_string());
            format!("<td class=\"n\">{denied}</td>")
        });
        let shadow = if rule.is_shadow { " (shadow)" } else { "" };
        format!(
            "<tr><td>{}{shadow}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>{}<td class=\"n\">{}</td>\
             <td class=\"n\">{}{}</td><td>{}</td></tr>",
            escaped(&rule.id),
            rule.algorithm,
            rule.allowed,
            rule.denied,
            old.unwrap_or_default(),
            percent(rule.denied, rule.allowed + rule.denied),
            if rule.requests_of_other_subjects > 0 { "over " } else { "" },
            rule.subjects,
            largest(rule),
        )
    });
    let rows: String = rows.collect();
    let old = if report.old.is_some() {
        "<th class=\"n\">denied before</th>"
    } else {
        ""
    };
    let table = format!(
        "<table><thead><tr><th>rule</th><th>algorithm</th><th class=\"n\">allowed</th><th class=\"n\">denied</th>{old}\
         <th class=\"n\">share</th><th class=\"n\">subjects</th><th>largest burst</th></tr></thead><tbody>{rows}</tbody></table>"
    );
    section("Rules", "What each rule decided by itself.", &table)
}

fn bursts(side: &SideFigures) -> String {
    let rows = side.rules.iter().filter_map(|rule| {
        let burst = rule.largest_burst?;
        let ratio = burst.admitted as f64 / burst.limit.max(1) as f64;
        Some(Bar {
            class: if ratio > 1.0 { "denied" } else { "allowed" },
            label: rule.id.clone(),
            value: ratio,
            note: format!("{ratio:.2}x: {} of {}", burst.admitted, burst.limit),
        })
    });
    let rows: Vec<Bar> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let text = "The most that one subject was allowed in any window of the rule's length, against the limit. An exact \
                sliding log never exceeds 1. Fixed windows reach up to 2 at their edges, buckets and GCRA up to 2 after a \
                pause. Up to 256 subjects of each rule are traced.";
    section(
        "Bursts, against the ideal",
        text,
        &bars("Largest burst of each rule", &rows),
    )
}

fn fairness(side: &SideFigures) -> String {
    let busiest = side.rules.iter().filter(|rule| rule.subjects > 1);
    let Some(rule) = busiest.max_by_key(|rule| (rule.denied, rule.allowed)) else {
        return String::new();
    };
    let curve = |of: fn(&(f64, f64, f64)) -> f64| {
        let points = rule.concentration.iter();
        points
            .map(|point| (point.0 * 100.0, of(point) * 100.0))
            .collect::<Vec<_>>()
    };
    let even = Curve {
        class: "old",
        label: "all subjects alike",
        points: vec![(0.0, 0.0), (100.0, 100.0)],
        is_area: false,
    };
    let asked = Curve {
        class: "denied",
        label: "share of requests",
        points: curve(|it| it.1),
        is_area: false,
    };
    let allowed = Curve {
        class: "allowed",
        label: "share of allowed requests",
        points: curve(|it| it.2),
        is_area: false,
    };
    let ticks = [0.0, 25.0, 50.0, 75.0, 100.0].map(|at| (at, format!("{at:.0}%")));
    let plot = curves(
        "Requests by subject, the busiest first",
        &[even, asked, allowed],
        &ticks,
    );
    let text = format!(
        "The rule {}: the busiest subjects, from the left, made this share of requests (in percent). A rule that protects \
         quiet subjects pulls the allowed curve towards the diagonal. Fairness index {:.3} (1: all subjects get the same \
         share of what they ask for).",
        escaped(&rule.id),
        rule.fairness
    );
    section("Fairness", &text, &plot)
}

/// Writes a number of milliseconds in a larger unit.
fn wait(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{:.1} s", millis as f64 / 1e3),
        60_000..3_600_000 => format!("{:.1} min", millis as f64 / 6e4),
        3_600_000..86_400_000 => format!("{:.1} h", millis as f64 / 3.6e6),
        _ => format!("{:.1} days", millis as f64 / 8.64e7),
    }
}

fn waits(report: &Report) -> String {
    let side = &report.new;
    if side.denied == 0 {
        return String::new();
    }
    let rows = side.retry_after_millis.iter().map(|(most, count)| Bar {
        class: "denied",
        label: format!("up to {}", wait(*most)),
        value: *count as f64,
        note: format!("{count} ({})", percent(*count, side.denied)),
    });
    let mut rows: Vec<Bar> = rows.collect();
    if side.never > 0 {
        rows.push(Bar {
            class: "denied",
            label: "no wait helps".to_owned(),
            value: side.never as f64,
            note: side.never.to_string(),
        });
    }
    let text = format!(
        "How long denied requests have to wait. The longest wait is {}.",
        wait(side.longest_wait_millis)
    );
    section(
        "Retry-After",
        &text,
        &bars("Waits of denied requests", &rows),
    )
}

fn memory(side: &SideFigures) -> String {
    // The memory is measured now and then: a bucket without a measurement keeps the last one.
    let mut last = 0;
    let points = side.series.iter().enumerate().map(|(place, bucket)| {
        last = if bucket.keys > 0 { bucket.keys } else { last };
        (place as f64, last as f64)
    });
    let keys = Curve {
        class: "line2",
        label: "states",
        points: points.collect(),
        is_area: false,
    };
    let text = format!(
        "States that the store holds. The most are {} states in {} bytes of this process.",
        side.peak_keys, side.peak_bytes
    );
    section("Memory", &text, &curves("States over time", &[keys], &[]))
}

fn calls(side: &SideFigures) -> String {
    let calls = side.store_calls;
    let bar = |label: &str, value: u64, class| Bar {
        class,
        label: label.to_owned(),
        value: value as f64,
        note: format!("{} ({})", short(value as f64), percent(value, calls.exact)),
    };
    let rows = [
        bar("exact", calls.exact, "line2"),
        bar("exact, known denials", calls.with_denial_cache, "line2"),
        bar("leased, slices of 100 ms", calls.leased, "allowed"),
        bar("async, flushes of 500 ms", calls.flushed, "allowed"),
    ];
    let text = "How often one instance would call a shared store. For leased and async rules this is the least: one call \
                for each subject and slice or flush.";
    section("Store calls by mode", text, &bars("Store calls", &rows))
}

fn table(heading: &str, rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let has_old = rows.iter().any(|row| row.old.is_some());
    let lines = rows.iter().map(|row| {
        let old = row.old.map(|old| {
            let (now, before) = (row.counts.denied, old.denied);
            let sign = if now >= before { "+" } else { "-" };
            format!(
                "<td class=\"n\">{before}</td><td class=\"n\">{sign}{}</td>",
                now.abs_diff(before)
            )
        });
        format!(
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>{}</tr>",
            escaped(&row.name),
            row.counts.allowed,
            row.counts.denied,
            old.unwrap_or_default()
        )
    });
    let lines: String = lines.collect();
    let old = if has_old {
        "<th class=\"n\">denied before</th><th class=\"n\">change</th>"
    } else {
        ""
    };
    format!(
        "<h3>{}</h3><table><thead><tr><th>name</th><th class=\"n\">allowed</th><th class=\"n\">denied</th>{old}</tr></thead>\
         <tbody>{lines}</tbody></table>",
        escaped(heading)
    )
}

fn tables(report: &Report) -> String {
    let side = &report.new;
    let mut tables = table("Plans", &side.plans) + &table("Tenants", &side.tenants);
    for rule in &side.rules {
        tables += &table(
            &format!("Subjects that {} denies most", rule.id),
            &rule.most_denied,
        );
    }
    let old = report.old.as_ref();
    let hours = side.hours.iter().map(|(hour, counts)| Row {
        name: time(*hour),
        counts: *counts,
        old: old.map(|old| {
            let found = old.hours.iter().find(|(it, _)| it == hour);
            found.map_or_else(Default::default, |(_, counts)| *counts)
        }),
    });
    let hours: Vec<Row> = hours.take(MOST_HOURS).collect();
    tables += &table("Hours", &hours);
    if side.hours.len() > MOST_HOURS {
        let _ = write!(
            tables,
            "<p>The first {MOST_HOURS} of {} hours. The report as JSON has all of them.</p>",
            side.hours.len()
        );
    }
    section(
        "Who is denied",
        "The rows with the most denials, or with the largest change.",
        &tables,
    )
}

#[cfg(test)]
mod tests {
    use tollgate::{Attributes, Span, Time};

    use super::*;
    use crate::Simulation;
    use crate::log::LogSummary;

    #[test]
    fn page_tells_what_it_leaves_out() {
        let text = "{ version: 1, rules: [{ id: r, per: [user], algorithm: gcra, rate: 1/h }] }";
        let config = tollgate::parse("rules.yaml", text, &|_| None).unwrap();
        let page = |hours: u64, out_of_order: u64| {
            let mut simulation = Simulation::new(&config, None, false);
            for hour in 0..hours {
                let time = Time::from_micros(1_800_000_000_000_000 + hour * 3_600_000_000);
                simulation.decide(time, &Attributes::from([("user", "ann")]), 1);
            }
            let log = LogSummary {
                out_of_order,
                furthest_back: Span::from_secs(90),
                ..LogSummary::default()
            };
            html(&simulation.finish().with_log(&log), "a test")
        };
        let full = page(48, 0);
        assert!(!full.contains("The first 48"), "{full}");
        assert!(!full.contains("before that of an earlier line"), "{full}");
        let more = page(49, 3);
        assert!(more.contains("The first 48 of 49 hours"), "{more}");
        let lines = "3 lines of the log have a time up to 1.5 min before that of an earlier line";
        assert!(more.contains(lines), "{more}");
    }
}
