//! A stream of requests, described on one line.

use std::fmt;
use std::str::FromStr;

use tollgate_rules::document::{nearest, percent, rate, span, whole};
use tollgate_rules::is_attribute_name;

/// The most subjects of a stream.
const MAX_SUBJECTS: u64 = 1_000_000;
/// The most requests that a stream may be expected to have.
const MAX_REQUESTS: f64 = 1e9;
const DAY: f64 = 86_400e6;

/// A stream of requests. All times are in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    pub(super) kind: Kind,
    /// Requests per second.
    pub(super) rate: f64,
    pub(super) subjects: u64,
    /// The exponent of Zipf's law; 0 if all subjects are alike.
    pub(super) zipf: f64,
    /// The attribute of the subject.
    pub(super) per: String,
    /// The start of the subjects' names.
    pub(super) name: String,
    /// When the stream begins, and ends, since the start.
    pub(super) from: u64,
    pub(super) duration: u64,
    pub(super) cost: u64,
    pub(super) with: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Equal gaps.
    Steady,
    Poisson,
    /// `size` requests at once.
    Bursts {
        size: u64,
        every: u64,
    },
    /// A day with a low share at midnight and the peak at noon. The rate is that of the peak.
    Diurnal {
        low: f64,
    },
    /// `factor` times the rate for some time.
    Surge {
        factor: f64,
        at: u64,
        lasts: u64,
    },
}

/// Why a text does not describe a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadStream(String);

impl fmt::Display for BadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadStream {}

const KINDS: [&str; 6] = ["steady", "poisson", "bursts", "diurnal", "surge", "attack"];
const SETTINGS: [&str; 14] = [
    "rate", "subjects", "zipf", "per", "name", "duration", "cost", "size", "every", "low",
    "factor", "at", "for", "with.",
];

impl Stream {
    /// Returns the mean gap between requests at the usual rate, in microseconds.
    pub(super) fn gap(&self) -> f64 {
        1e6 / self.rate
    }

    /// Returns the highest level: how many times the usual rate.
    pub(super) fn highest(&self) -> f64 {
        match self.kind {
            Kind::Surge { factor, .. } => factor.max(1.0),
            _ => 1.0,
        }
    }

    /// Returns how many times the usual rate holds at a time since the start.
    pub(super) fn level(&self, at: f64) -> f64 {
        match self.kind {
            Kind::Diurnal { low } => {
                let of_day = (at % DAY) / DAY;
                let wave = (1.0 - (of_day * std::f64::consts::TAU).cos()) / 2.0;
                low + (1.0 - low) * wave
            }
            Kind::Surge {
                factor,
                at: from,
                lasts,
            } => {
                let in_surge = at >= from as f64 && at < from as f64 + lasts as f64;
                if in_surge { factor } else { 1.0 }
            }
            _ => 1.0,
        }
    }

    /// Returns the share of requests of the subjects up to each rank; empty if all subjects are alike.
    pub(super) fn shares(&self) -> Vec<f64> {
        if self.zipf == 0.0 {
            return Vec::new();
        }
        let weights = (1..=self.subjects).map(|rank| (rank as f64).powf(-self.zipf));
        let mut total = 0.0;
        let sums = weights.map(|weight| {
            total += weight;
            total
        });
        let mut sums: Vec<f64> = sums.collect();
        sums.iter_mut().for_each(|sum| *sum /= total);
        sums
    }
}

/// The settings in the description of a stream.
struct Settings<'t> {
    kind: &'t str,
    given: Vec<(&'t str, &'t str)>,
    used: Vec<&'t str>,
}

impl<'t> Settings<'t> {
    fn new(text: &'t str) -> Result<Settings<'t>, BadStream> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        if !KINDS.contains(&kind) {
            return Err(unknown("a kind of traffic", kind, &KINDS));
        }
        let mut given: Vec<(&str, &str)> = Vec::new();
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return Err(BadStream(format!(
                    "`{word}` is not a setting: write name=value"
                )));
            };
            if !SETTINGS.contains(&name) && !name.starts_with("with.") {
                return Err(unknown("a setting", name, &SETTINGS));
            }
            if given.iter().any(|(known, _)| *known == name) {
                return Err(BadStream(format!("`{name}` is given twice")));
            }
            given.push((name, value));
        }
        let used = Vec::new();
        Ok(Settings { kind, given, used })
    }

    /// Reads a setting with `parse`; `None` if it is not given.
    fn get<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, BadStream> {
        self.used.push(name);
        let found = self.given.iter().find(|(known, _)| *known == name);
        let Some((_, value)) = found else {
            return Ok(None);
        };
        let parsed = parse(value).map_err(|problem| BadStream(format!("{name}: {problem}")))?;
        Ok(Some(parsed))
    }

    /// Rejects settings that the kind does not use.
    fn check_used(&self) -> Result<(), BadStream> {
        let is_used = |name: &str| name.starts_with("with.") || self.used.contains(&name);
        match self.given.iter().find(|(name, _)| !is_used(name)) {
            Some((name, _)) => Err(BadStream(format!(
                "`{name}` is not a setting of `{}`",
                self.kind
            ))),
            None => Ok(()),
        }
    }
}

fn unknown(what: &str, name: &str, all: &[&str]) -> BadStream {
    let help = match nearest(name, all.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("write {}", all.join(", ")),
    };
    BadStream(format!("`{name}` is not {what}: {help}"))
}

fn micros(text: &str) -> Result<u64, String> {
    span(text)
        .map(tollgate::Span::as_micros)
        .map_err(|bad| format!("{}: {}", bad.message, bad.help))
}

fn number(text: &str) -> Result<u64, String> {
    whole(text).map_err(|bad| format!("{}: {}", bad.message, bad.help))
}

fn positive(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("it must be above 0".to_owned()),
        number => Ok(number),
    }
}

fn per_second(text: &str) -> Result<f64, String> {
    let rate = rate(text).map_err(|bad| format!("{}: {}", bad.message, bad.help))?;
    Ok(rate.amount() as f64 * 1e6 / rate.period().as_micros() as f64)
}

fn decimal(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=1e6).contains(&number) => Ok(number),
        _ => Err(format!("`{text}` is not a number: write one such as 1.1")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let hundredths = percent(text, 100).map_err(|bad| format!("{}: {}", bad.message, bad.help))?;
    Ok(f64::from(hundredths) / 10_000.0)
}

impl FromStr for Stream {
    type Err = BadStream;

    fn from_str(text: &str) -> Result<Stream, BadStream> {
        let mut settings = Settings::new(text)?;
        let is_attack = settings.kind == "attack";
        let mut rate = 100.0;
        if settings.kind != "bursts" {
            rate = settings.get("rate", per_second)?.unwrap_or(rate);
        }
        let duration = settings.get("duration", micros)?.unwrap_or(3_600_000_000);
        let mut from = 0;
        let kind = match settings.kind {
            "steady" => Kind::Steady,
            "bursts" => Kind::Bursts {
                size: settings.get("size", positive)?.unwrap_or(100),
                every: settings.get("every", micros)?.unwrap_or(10_000_000).max(1),
            },
            "diurnal" => Kind::Diurnal {
                low: settings.get("low", share)?.unwrap_or(0.2),
            },
            "surge" => Kind::Surge {
                factor: settings.get("factor", decimal)?.unwrap_or(10.0),
                at: settings.get("at", micros)?.unwrap_or(duration / 3),
                lasts: settings.get("for", micros)?.unwrap_or(duration / 6),
            },
            _ => Kind::Poisson,
        };
        let mut end = duration;
        if is_attack {
            from = settings.get("at", micros)?.unwrap_or(duration / 3);
            let lasts = settings.get("for", micros)?.unwrap_or(duration / 6);
            end = from.saturating_add(lasts).min(duration);
        }
        let usual = if is_attack { 1 } else { 1000 };
        let subjects = settings.get("subjects", positive)?.unwrap_or(usual);
        if subjects > MAX_SUBJECTS {
            return Err(BadStream(format!("subjects: at most {MAX_SUBJECTS}")));
        }
        let stream = Stream {
            kind,
            rate,
            subjects,
            zipf: settings.get("zipf", decimal)?.unwrap_or(0.0),
            per: settings
                .get("per", |it| Ok(it.to_owned()))?
                .unwrap_or_else(|| "user".to_owned()),
            name: settings
                .get("name", |it| Ok(it.to_owned()))?
                .unwrap_or_else(|| if is_attack { "attacker" } else { "subject" }.to_owned()),
            from,
            duration: end,
            cost: settings.get("cost", number)?.unwrap_or(1),
            with: with(&settings.given)?,
        };
        settings.check_used()?;
        stream.check()?;
        Ok(stream)
    }
}

/// Reads the settings `with.NAME=VALUE`.
fn with(given: &[(&str, &str)]) -> Result<Vec<(String, String)>, BadStream> {
    let mut with = Vec::new();
    for (name, value) in given {
        if let Some(name) = name.strip_prefix("with.") {
            if !is_attribute_name(name) {
                return Err(BadStream(format!("`{name}` is not an attribute name")));
            }
            with.push((name.to_owned(), (*value).to_owned()));
        }
    }
    Ok(with)
}

impl Stream {
    fn check(&self) -> Result<(), BadStream> {
        if !is_attribute_name(&self.per) {
            return Err(BadStream(format!(
                "per: `{}` is not an attribute name",
                self.per
            )));
        }
        if self.duration == 0 {
            return Err(BadStream("duration: it must be above 0".to_owned()));
        }
        let lasts = self.duration.saturating_sub(self.from) as f64;
        let requests = match self.kind {
            Kind::Bursts { size, every } => lasts / every as f64 * size as f64,
            _ => lasts / self.gap() * self.highest(),
        };
        match requests <= MAX_REQUESTS {
            true => Ok(()),
            false => Err(BadStream(
                "the stream has more than a billion requests: use a lower rate or a shorter duration"
                    .to_owned(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        text.parse::<Stream>().unwrap_err().to_string()
    }

    #[test]
    fn wrong_texts_are_rejected_with_a_remedy() {
        assert_eq!(
            problem("poison"),
            "`poison` is not a kind of traffic: did you mean `poisson`?"
        );
        assert_eq!(
            problem("poisson rat=1/s"),
            "`rat` is not a setting: did you mean `rate`?"
        );
        assert_eq!(
            problem("poisson rate"),
            "`rate` is not a setting: write name=value"
        );
        assert_eq!(
            problem("poisson low=5%"),
            "`low` is not a setting of `poisson`"
        );
        assert_eq!(
            problem("steady rate=5"),
            "rate: `5` is not a rate: add the time: write 5/s or 5/m"
        );
        assert_eq!(problem("bursts size=0"), "size: it must be above 0");
        assert_eq!(problem("steady rate=1/s rate=2/s"), "`rate` is given twice");
        assert_eq!(problem("steady with.1x=2"), "`1x` is not an attribute name");
        assert!(problem("steady rate=9000000/s duration=1h").starts_with("the stream has more"));
    }

    #[test]
    fn levels_follow_the_kind() {
        let stream = |text: &str| text.parse::<Stream>().unwrap();
        let surge = stream("surge factor=5 at=10s for=5s duration=60s");
        assert_eq!(
            [9e6, 10e6, 14e6, 15e6].map(|at| surge.level(at)),
            [1.0, 5.0, 5.0, 1.0]
        );
        let day = stream("diurnal low=50% duration=24h");
        assert!((day.level(0.0) - 0.5).abs() < 1e-9 && (day.level(DAY / 2.0) - 1.0).abs() < 1e-9);
    }
}
