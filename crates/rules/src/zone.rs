//! Time zones in a text: a name of the IANA database, or `tenant` for each tenant's own.

use std::fmt;

use crate::document::{Node, Place, Problems, Read, Short, schema, suggestion, wanted};
use tollgate_core::Zone;

const HELP: &str = "write a name of the IANA database, such as Europe/Berlin or UTC";
/// The word for the zone of the tenant.
const TENANT: &str = "tenant";

/// The zone in which periods begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ZoneFrom {
    /// The tenant's zone; UTC if the tenant has none.
    Tenant,
    Named(Zone),
}

impl fmt::Display for ZoneFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ZoneFrom::Tenant => TENANT,
            ZoneFrom::Named(zone) => zone.name(),
        })
    }
}

impl Read for ZoneFrom {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<ZoneFrom> {
        match node.text() {
            Some(TENANT) => Some(ZoneFrom::Tenant),
            Some(text) if !node.is_null() => named(text, node.place, problems).map(ZoneFrom::Named),
            _ => {
                wanted("a time zone", HELP, node, problems);
                None
            }
        }
    }
}
schema!(ZoneFrom, "TimeZone", _generator => {
    "type": "string",
    "examples": ["UTC", "Europe/Berlin", "America/New_York", "tenant"],
});

/// Returns the zone of this name, or reports that there is none.
pub(crate) fn named(text: &str, place: Place, problems: &mut Problems<'_>) -> Option<Zone> {
    if let Ok(zone) = Zone::named(text) {
        return Some(zone);
    }
    // The search for a similar name is slow, and readers need it only for the first problems.
    let help = match problems.is_full() {
        true => HELP.to_owned(),
        false => help(text),
    };
    let message = format!("there is no time zone `{}`", Short(text));
    problems.report(place, message, help);
    None
}

fn help(text: &str) -> String {
    let offset = text.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    if offset.starts_with(['+', '-']) && offset[1..].starts_with(|c: char| c.is_ascii_digit()) {
        return "write a place, such as Europe/Berlin, which follows daylight saving; \
                Etc/GMT-2 is two hours ahead of UTC all year"
            .to_owned();
    }
    let names: Vec<String> = Zone::names().collect();
    let spaced = text.replace(' ', "_");
    let city = names.iter().find(|name| {
        let city = name.rsplit('/').next().unwrap_or(name);
        city.eq_ignore_ascii_case(&spaced)
    });
    match city {
        Some(city) => format!("did you mean `{city}`?"),
        None => suggestion(text, names.iter().map(String::as_str), HELP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested() {
        for (text, expected) in [
            ("Berlin", "did you mean `Europe/Berlin`?"),
            ("Europe/Berln", "did you mean `Europe/Berlin`?"),
            ("new york", "did you mean `America/New_York`?"),
            ("America/New York", "did you mean `America/New_York`?"),
            ("+02:00", "write a place,"),
            ("UTC+2", "write a place,"),
            ("GMT-05:00", "write a place,"),
            ("Atlantis/Poseidonis", "write a name of the IANA database"),
            ("", "write a name of the IANA database"),
            ("é", "write a name of the IANA database"),
        ] {
            assert!(Zone::named(text).is_err(), "{text}");
            assert!(help(text).starts_with(expected), "{text}: {}", help(text));
        }
    }
}
